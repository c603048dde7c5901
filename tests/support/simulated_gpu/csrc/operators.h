// What makes, copies and reads tensors of the device; all other operators fall through to the CPU's kernels.
#pragma once
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <set>

#include "device.h"

namespace simulated {
using at::Tensor;

// The same memory as a CPU's tensor.
inline Tensor on_host(const Tensor& t) {
  if (!t.is_cuda()) return t;
  auto options = t.options().device(at::kCPU);
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), options);
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), options);
}

inline Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                    std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(dtype), format);
}

inline Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard on(device);
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(dtype));
}

// A copy between host and device waits unless it is asked not to and the host's memory is pinned.
inline Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  const bool up = to.is_cuda() && !from.is_cuda(), down = from.is_cuda() && !to.is_cuda();
  const bool waits = !non_blocking || !PinnedMemory::holds((up ? from : to).data_ptr());
  if (from.numel() && waits && up) report(non_blocking ? "copy to device from pageable memory" : "blocking copy to device");
  if (from.numel() && waits && down) report(non_blocking ? "copy to host into pageable memory" : "blocking copy to host");
  on_host(to).copy_(on_host(from));
  return to;
}

// Inside the fallback, which brings results back.
inline Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  on_host(to).copy_(on_host(from));
  return to;
}
inline Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline at::Scalar item(const Tensor& t) {
  report("item");
  return on_host(t).item();
}

inline const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* storage = self.storage().unsafeGetStorageImpl();
  const auto elements = c10::multiply_integers(size);
  const auto needed = static_cast<size_t>((elements + self.storage_offset()) * self.element_size());
  if (elements > 0 && needed > storage->nbytes()) {
    const c10::OptionalDeviceGuard on(self.device());
    auto larger = device_memory.allocate(needed);
    if (storage->nbytes()) std::memcpy(larger.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(larger));
    storage->set_nbytes(needed);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

inline Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  if (stride.size() == size.size()) impl->set_sizes_and_strides(size, stride);
  else impl->set_sizes_contiguous(size);
  return self;
}

// Operators of CUDA that take tensors of the host too: indices, and what only looks at or moves tensors.
inline const std::set<std::string> takes_both{
    "aten::index", "aten::_index_put_impl_", "aten::index_put_", "aten::index_put", "aten::_foreach_copy_",
    "aten::_to_cpu", "aten::set_", "aten::is_set_to", "aten::record_stream"};
// Whether the host must know the result's size or value, which torch says of its operators by these tags. The size of
// `repeat_interleave` can be given.
inline bool waits(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> values) {
  const auto& name = op.schema().name();
  if (name == "aten::index") return false;  // only by a mask: see `selects_by_mask`
  if (name == "aten::repeat_interleave") return values.back().isNone();
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

struct Arguments {
  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> values;

  // Raise as CUDA does when operands lie on different devices; numbers (tensors without dimensions) may.
  void check_devices() const {
    std::optional<at::Device> gpu;
    std::string other, where;
    auto look = [&](const Tensor& t, const std::string& argument) {
      if (!t.defined() || (!t.is_cuda() && t.dim() == 0)) return;
      if (t.is_cuda() && (!gpu || *gpu == t.device())) gpu = t.device();
      else other = t.device().str(), where = argument;
    };
    each_tensor(look);
    TORCH_CHECK(!gpu || other.empty(), "Expected all tensors to be on the same device, but found at least two devices, ",
                gpu->str(), " and ", other, "! (when checking argument for argument ", where, " in method ", schema.name(), ")");
  }

  template <typename Look>
  void each_tensor(Look look) const {
    for (size_t i = 0; i < values.size(); i++) {
      const auto& name = schema.arguments()[i].name();
      if (values[i].isTensor()) look(values[i].toTensor(), name);
      else if (values[i].isTensorList()) for (const Tensor& t : values[i].toTensorVector()) look(t, name);
      else if (values[i].isOptionalTensorList())
        for (const std::optional<Tensor> t : values[i].toOptionalTensorList()) if (t) look(*t, name);
    }
  }

  // A mask's elements must be counted, unless all of them are set to one number.
  bool selects_by_mask() const {
    const bool puts = schema.name() == "aten::_index_put_impl_";
    if (!puts && schema.name() != "aten::index") return false;
    if (puts && values[2].toTensor().numel() == 1 && values[2].toTensor().is_cpu()) return false;
    bool found = false;
    for (const std::optional<Tensor> t : values[1].toOptionalTensorList())
      found |= t && t->defined() && (t->scalar_type() == at::kBool || t->scalar_type() == at::kByte);
    return found;
  }
};

// Random numbers come from the device's generator, and the device of the result is that of the fallback's copy.
inline void make_host_argument(c10::IValue& value, const c10::Argument& argument) {
  if (value.isDevice() && value.toDevice().is_cuda()) value = at::Device(at::kCPU);
  if (argument.type()->annotation_str().find("Generator") == std::string::npos) return;
  TORCH_CHECK(value.isNone() || value.toGenerator().device().is_cuda(),
              "Expected a 'cuda' device type for generator but found 'cpu'");
  auto generator = value.isNone() ? default_generator(-1) : value.toGenerator();
  value = static_cast<Random*>(generator.unsafeGetGeneratorImpl())->host;
}

inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto count = schema.arguments().size();
  const Arguments arguments{schema, torch::jit::last(*stack, count)};
  if (!takes_both.count(schema.name())) arguments.check_devices();
  if (waits(op, arguments.values)) report(schema.name().c_str());
  if (arguments.selects_by_mask()) report("index by a mask");
  for (size_t i = 0; i < count; i++) make_host_argument((*stack)[stack->size() - count + i], schema.arguments()[i]);
  inside++;
  try {
    at::native::cpu_fallback(op, stack);
  } catch (...) {
    inside--;
    throw;
  }
  inside--;
}
}  // namespace simulated

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", simulated::empty);
  m.impl("empty_strided", simulated::empty_strided);
  m.impl("copy_", simulated::copy_);
  m.impl("_copy_from", simulated::copy_from);
  m.impl("_copy_from_and_resize", simulated::copy_from_and_resize);
  m.impl("_local_scalar_dense", simulated::item);
  m.impl("resize_", simulated::resize_);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", simulated::set_storage);
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  // A GPU has a kernel of it; what torch does without one reads the sizes of the groups on the host.
  m.impl("_grouped_mm", torch::CppFunction::makeFromBoxedFunction<&simulated::fallback>());
}

TORCH_LIBRARY(simulated_gpu, m) {
  m.def("default_generator(int device) -> Generator?", [](int64_t device) {
    return simulated::default_generator(static_cast<c10::DeviceIndex>(device));
  });
}
