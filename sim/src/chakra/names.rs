//! Names of attributes.

// Those that simulators know.
pub const IS_CPU_OP: &str = "is_cpu_op";
pub const NUM_OPS: &str = "num_ops";
pub const TENSOR_SIZE: &str = "tensor_size";
pub const COMM_TYPE: &str = "comm_type";
pub const COMM_SIZE: &str = "comm_size";
pub const COMM_SRC: &str = "comm_src";
pub const COMM_DST: &str = "comm_dst";
pub const COMM_TAG: &str = "comm_tag";
pub const PG_NAME: &str = "pg_name";

// In the metadata of a file.
/// Version of the attributes below; its presence tells a file of Nearfield.
pub const FORMAT: &str = "nearfield.format";
/// The file's rank.
pub const RANK: &str = "nearfield.rank";
/// Nodes in the file.
pub const NODES: &str = "nearfield.nodes";
/// Tasks of the whole graph.
pub const TASKS: &str = "nearfield.tasks";
/// All ranks of the graph, ascending.
pub const RANKS: &str = "nearfield.ranks";
/// All resources of the graph: names, places, lanes.
pub const RESOURCES: &str = "nearfield.resources";
pub const PLACES: &str = "nearfield.resource_places";
pub const LANES: &str = "nearfield.resource_lanes";
/// All phases of the graph.
pub const PHASES: &str = "nearfield.phases";
/// All memory claims: places, bytes, tasks. Only the first rank's file has them, as there may be many.
pub const CLAIM_PLACES: &str = "nearfield.claim_places";
pub const CLAIM_BYTES: &str = "nearfield.claim_bytes";
/// -1 for the start of the step.
pub const CLAIM_FROM: &str = "nearfield.claim_from";
/// -1 for the end of the step.
pub const CLAIM_TO: &str = "nearfield.claim_to";

// In a node.
/// Index of the task in the whole graph.
pub const TASK: &str = "nearfield.task";
/// Index of its resource.
pub const RESOURCE: &str = "nearfield.resource";
/// Index of its phase.
pub const PHASE: &str = "nearfield.phase";
/// Which operation, in lower case.
pub const OP: &str = "nearfield.op";
/// Source and destination of a transfer.
pub const FROM: &str = "nearfield.from";
pub const TO: &str = "nearfield.to";
/// Drive of a storage operation or a seal.
pub const DRIVE: &str = "nearfield.drive";
/// The memory at the other end of a storage operation.
pub const OTHER: &str = "nearfield.other";
/// Name of a kernel.
pub const KERNEL: &str = "nearfield.kernel";
/// Which occurrence of a collective operation.
pub const GROUP: &str = "nearfield.group";
/// Tag of a message, with all its 64 bits.
pub const TAG: &str = "nearfield.tag";
