//! The description of the kernels: XML, one `kernel` element for each.

use std::fmt::Write as _;

use nearfield_hls::interface::{KERNELS, Kind};

use super::digest::instance_name;
use super::layout::{FIRST_ARGUMENT, argument_step};

/// A kernel as a container describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its arguments by their numbers.
    pub arguments: Vec<Argument>,
    /// Where it lies on the card.
    pub instances: Vec<Instance>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Place in the kernel's registers.
    pub offset: u64,
    /// Bytes in the registers.
    pub bytes: u64,
    /// Whether it is the address of memory.
    pub is_memory: bool,
}

/// One copy of a kernel on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its name.
    pub name: String,
    /// First address of its registers, if the description says so.
    pub base: Option<u64>,
}

/// Address of the first kernel's registers.
const FIRST_BASE: u64 = 0x0180_0000;
/// Addresses that a kernel's registers take.
pub const UNIT_RANGE: u64 = 0x1_0000;

/// First address of a unit's registers.
pub const fn unit_base(number: usize) -> u64 {
    FIRST_BASE + number as u64 * UNIT_RANGE
}

/// Writes the description of this program's kernels.
pub(super) fn describe(digest: &str) -> String {
    let mut out = String::from(concat!(
        r#"<?xml version="1.0" encoding="UTF-8"?><project name="nearfield">"#,
        r#"<platform vendor="nearfield" boardid="emulated" name="emulated">"#,
        r#"<device name="fpga0" fpgaDevice="emulated:emulated">"#,
        r#"<core name="OCL_REGION_0" target="csim" type="clc_region">"#
    ));
    for (number, kernel) in KERNELS.iter().enumerate() {
        let name = kernel.name;
        let instance = instance_name(name, digest);
        let base = unit_base(number);
        let mut offset = FIRST_ARGUMENT;
        let mut text = format!(
            concat!(
                r#"<kernel name="{}" language="c" type="pl">"#,
                r#"<port name="M_AXI_GMEM" mode="master" range="0xFFFFFFFF" dataWidth="512" "#,
                r#"portType="addressable" base="0x0"/>"#,
                r#"<port name="S_AXI_CONTROL" mode="slave" range="0x1000" dataWidth="32" "#,
                r#"portType="addressable" base="0x0"/>"#
            ),
            name
        );
        for (id, argument) in kernel.arguments.iter().enumerate() {
            let bytes = argument.kind.bytes();
            let qualifier = u8::from(argument.kind.is_memory());
            let port = if argument.kind.is_memory() { "M_AXI_GMEM" } else { "S_AXI_CONTROL" };
            let of = match argument.kind {
                Kind::Read | Kind::Write => "void*",
                Kind::U32 => "uint",
                Kind::U64 => "ulong",
                Kind::F32 => "float",
            };
            let name = argument.name;
            // Writing to a text does not fail.
            let _ = write!(
                text,
                concat!(
                    r#"<arg name="{}" addressQualifier="{}" id="{}" port="{}" size="{:#x}" offset="{:#x}" "#,
                    r#"hostOffset="0x0" hostSize="{:#x}" type="{}"/>"#
                ),
                name, qualifier, id, port, bytes, offset, bytes, of
            );
            offset += argument_step(bytes);
        }
        let _ = write!(
            text,
            r#"<instance name="{instance}"><addrRemap base="{base:#x}" range="{UNIT_RANGE:#x}" port="S_AXI_CONTROL"/></instance></kernel>"#
        );
        out.push_str(&text);
    }
    out.push_str("</core></device></platform></project>");
    out
}

/// Reads the description of kernels.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse(text: &str) -> Result<Vec<Kernel>, String> {
    let text = text.trim_end_matches('\0');
    let document = roxmltree::Document::parse(text).map_err(|error| error.to_string())?;
    document.descendants().filter(|node| node.has_tag_name("kernel")).map(parse_kernel).collect()
}

fn parse_kernel(node: roxmltree::Node<'_, '_>) -> Result<Kernel, String> {
    let name = node.attribute("name").ok_or("a kernel has no name")?.to_owned();
    let mut arguments = Vec::new();
    let mut instances = Vec::new();
    for child in node.children() {
        match child.tag_name().name() {
            "arg" => arguments.push(parse_argument(child, &name)?),
            "instance" => instances.push(parse_instance(child, &name)?),
            _ => {}
        }
    }
    arguments.sort_by_key(|(id, _)| *id);
    if let Some(wanted) = (0..).zip(&arguments).find(|(wanted, (id, _))| wanted != id) {
        return Err(format!("kernel {name} has no argument {}, or two of them", wanted.0));
    }
    let arguments = arguments.into_iter().map(|(_, argument)| argument).collect();
    Ok(Kernel { name, arguments, instances })
}

fn number(node: roxmltree::Node<'_, '_>, attribute: &str, what: &str) -> Result<u64, String> {
    let text =
        node.attribute(attribute).ok_or_else(|| format!("{what} has no attribute {attribute}"))?;
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{what}: attribute {attribute} is no number: {text}"))
}

fn parse_argument(node: roxmltree::Node<'_, '_>, kernel: &str) -> Result<(u64, Argument), String> {
    let name = node
        .attribute("name")
        .ok_or_else(|| format!("an argument of kernel {kernel} has no name"))?
        .to_owned();
    let what = format!("kernel {kernel}, argument {name}");
    let offset = number(node, "offset", &what)?;
    let bytes = number(node, "size", &what)?;
    let is_memory = match number(node, "addressQualifier", &what)? {
        0 => false,
        1 => true,
        other => return Err(format!("{what} is of the unknown kind {other}")),
    };
    Ok((number(node, "id", &what)?, Argument { name, offset, bytes, is_memory }))
}

fn parse_instance(node: roxmltree::Node<'_, '_>, kernel: &str) -> Result<Instance, String> {
    let name = node
        .attribute("name")
        .ok_or_else(|| format!("an instance of kernel {kernel} has no name"))?
        .to_owned();
    let what = format!("instance {name} of kernel {kernel}");
    let base = node
        .children()
        .find(|child| child.has_tag_name("addrRemap"))
        .map(|child| number(child, "base", &what))
        .transpose()?;
    Ok(Instance { name, base })
}
