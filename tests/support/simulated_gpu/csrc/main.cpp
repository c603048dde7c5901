// A simulated CUDA device for torch's CPU build: tensors carry CUDA's dispatch key, lie in host memory and are computed
// by the CPU's kernels. Must be loaded before torch, which keeps the first CUDAHooks that it finds.
#include "device.h"
#include "operators.h"

using namespace simulated;

// For ctypes.
extern "C" {
void simulated_listen(void (*call)(const char*)) { listener = call; }
// More than 0: what happens now is the inside of one operation, and is not reported.
void simulated_inside(int change) { inside += change; }
void simulated_report(const char* what) { report(what); }
int64_t simulated_allocated(int device) { return allocated[device]; }
int64_t simulated_peak(int device) { return peak[device]; }
void simulated_reset_peak(int device) { peak[device] = allocated[device].load(); }
int simulated_devices() { return kDevices; }
int simulated_current() { return current; }
void simulated_set_current(int device) { current = static_cast<c10::DeviceIndex>(device); }
}
