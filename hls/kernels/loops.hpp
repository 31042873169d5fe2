// Numbers of the loops whose passes are counted. src/account.rs has their names, in this order.
#ifndef NEARFIELD_LOOPS_HPP
#define NEARFIELD_LOOPS_HPP

namespace nearfield {

enum Loop {
    LOOP_LOAD_GRADIENT,
    LOOP_LOAD_PARAM,
    LOOP_LOAD_EXP_AVG,
    LOOP_LOAD_EXP_AVG_SQ,
    LOOP_UNPACK_GRADIENT,
    LOOP_UNPACK_PARAM,
    LOOP_UNPACK_EXP_AVG,
    LOOP_UNPACK_EXP_AVG_SQ,
    LOOP_COMPUTE,
    LOOP_PACK_PARAM,
    LOOP_PACK_EXP_AVG,
    LOOP_PACK_EXP_AVG_SQ,
    LOOP_PACK_WEIGHTS,
    LOOP_STORE_PARAM,
    LOOP_STORE_EXP_AVG,
    LOOP_STORE_EXP_AVG_SQ,
    LOOP_STORE_WEIGHTS,
    LOOP_LOAD_INDICES,
    LOOP_LOAD_VALUES,
    LOOP_MERGE,
    LOOP_JOIN,
    LOOP_FILL,
    LOOP_CHECK,
    LOOP_BOUNDS,
    LOOP_STORE_BOUNDS,
};

} // namespace nearfield

#endif
