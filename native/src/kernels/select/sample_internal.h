// The sampling kernels by instruction set.
#pragma once

#include "kernels/select/sample.h"

namespace edgekv {

using SampleFn = SampleResult (*)(const SampleProblem &);
extern const SampleFn kSamplePortable;
extern const SampleFn kSampleAvx2;
extern const SampleFn kSampleAvx512;
extern const SampleFn kSampleNeon;

}  // namespace edgekv
