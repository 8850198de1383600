// The selection of each instruction set.
#pragma once

#include "select.h"

namespace edgekv {

using SelectFn = SelectResult (*)(const SelectProblem & problem);

extern const SelectFn kSelectPortable;
extern const SelectFn kSelectAvx2;
extern const SelectFn kSelectAvx512;

}  // namespace edgekv
