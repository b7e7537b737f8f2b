// Unit: what multiplies elements of a kind. Every unit has the same functions:
//
//   multiply(product, tile)  out[r][c] = sum over k of row r's word k * column c's
//   gather(seen, sums)       sums [rows][dim] = faded * sums + weights * values
//
// for up to ROWS rows of a product, and up to HEIGHT of what attends together.
#pragma once

#include "lanes.h"
#include "matrix.h"

namespace tidegate {

template <class E>
struct UnitFor {
    using Type = Lanes<E>;
};
#ifdef TIDEGATE_MATRIX_UNIT
template <>
struct UnitFor<MatrixBFloat16> {
    using Type = MatrixUnit;
};
#endif
template <class E>
using Unit = typename UnitFor<E>::Type;

}  // namespace tidegate
