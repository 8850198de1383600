#include "cuda/kernels/attend_launch.cuh"

namespace edgekv::gpu {

void launch_attend_lists(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    launch_types<true>(p, part, workspace, stream);
}

}  // namespace edgekv::gpu
