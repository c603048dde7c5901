// Devices, their memory, pinned memory, random numbers, and the hooks by which torch finds all of that.
#pragma once
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

namespace simulated {
constexpr auto kCuda = c10::DeviceType::CUDA;
constexpr c10::DeviceIndex kDevices = 4;
inline thread_local c10::DeviceIndex current = 0;

inline std::atomic<void (*)(const char*)> listener{nullptr};
inline thread_local int inside = 0;

// Tell the listener of something that makes the host wait on a GPU.
inline void report(const char* what) {
  auto* call = listener.load();
  if (call && !inside) call(what);
}

// A simulated GPU has one stream, on which everything is done at once.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::DeviceType type() const override { return kCuda; }
  c10::Device getDevice() const override { return c10::Device(kCuda, current); }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(getDevice()); }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *event = this_event();
  }
  static void* this_event() {
    static int event;
    return &event;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { report("stream.synchronize"); }
  void synchronizeEvent(void*) const override { report("event.synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { report("synchronize"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
inline c10::impl::DeviceGuardImplRegistrar guard(kCuda, new Guard());

inline std::array<std::atomic<int64_t>, kDevices> allocated{}, peak{};

// Every block begins with a note of its size and device.
struct DeviceMemory final : c10::Allocator {
  struct alignas(64) Note {
    int64_t bytes;
    c10::DeviceIndex device;
  };
  c10::DataPtr allocate(size_t bytes) override {
    auto* note = static_cast<Note*>(c10::GetCPUAllocator()->raw_allocate(sizeof(Note) + bytes));
    *note = {static_cast<int64_t>(bytes), current};
    int64_t now = allocated[current] += note->bytes, most = peak[current];
    while (now > most && !peak[current].compare_exchange_weak(most, now)) {}
    return {note + 1, note, &free, c10::Device(kCuda, current)};
  }
  static void free(void* context) {
    auto* note = static_cast<Note*>(context);
    allocated[note->device] -= note->bytes;
    c10::GetCPUAllocator()->raw_deallocate(note);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
inline DeviceMemory device_memory;

// Host memory that is known by its addresses.
struct PinnedMemory final : c10::Allocator {
  inline static std::map<const char*, size_t> blocks;
  inline static std::mutex lock;
  c10::DataPtr allocate(size_t bytes) override {
    bytes = std::max<size_t>(bytes, 1);
    auto* memory = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(bytes));
    std::lock_guard<std::mutex> held(lock);
    blocks[memory] = bytes;
    return {memory, memory, &free, c10::Device(c10::DeviceType::CPU)};
  }
  static void free(void* memory) {
    std::lock_guard<std::mutex> held(lock);
    blocks.erase(static_cast<char*>(memory));
    c10::GetCPUAllocator()->raw_deallocate(memory);
  }
  static bool holds(const void* address) {
    auto* byte = static_cast<const char*>(address);
    std::lock_guard<std::mutex> held(lock);
    auto next = blocks.upper_bound(byte);
    return next != blocks.begin() && byte < std::prev(next)->first + std::prev(next)->second;
  }
  at::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};
inline PinnedMemory pinned_memory;

// A device's random numbers are those that the CPU would draw.
struct Random final : c10::GeneratorImpl {
  at::Generator host;
  Random(c10::DeviceIndex device, at::Generator drawn_by)
      : GeneratorImpl(c10::Device(kCuda, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)), host(std::move(drawn_by)) {}
  explicit Random(c10::DeviceIndex device) : Random(device, at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  static c10::DeviceType device_type() { return kCuda; }
  Random* clone_impl() const override { return new Random(device().index(), host.clone()); }
};

inline c10::DeviceIndex or_current(c10::DeviceIndex device) { return device < 0 ? current : device; }

inline at::Generator& default_generator(c10::DeviceIndex device) {
  static std::array<at::Generator, kDevices> all = [] {
    std::array<at::Generator, kDevices> made;
    for (c10::DeviceIndex i = 0; i < kDevices; i++) made[i] = at::make_generator<Random>(i);
    return made;
  }();
  return all[or_current(device)];
}

// torch looks for a class of this name.
struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return kDevices; }
  at::DeviceIndex deviceCount() const override { return kDevices; }
  at::DeviceIndex current_device() const override { return current; }
  at::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(at::DeviceIndex device) const override { current = device; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex device) const override { return std::exchange(current, device); }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex device) const override { return exchangeDevice(or_current(device)); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return PinnedMemory::holds(address); }
  const at::Generator& getDefaultGenerator(at::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(at::DeviceIndex device) const override {
    return at::make_generator<Random>(or_current(device));
  }
};
}  // namespace simulated

namespace at {
using simulated::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

namespace simulated {
inline const bool registered = (c10::SetAllocator(kCuda, &device_memory), true);
}
