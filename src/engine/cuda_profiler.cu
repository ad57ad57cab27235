#include "engine/cuda_profiler.h"

#include <cuda_runtime_api.h>
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace quire {
namespace {

// Where libcupti is looked for, in this order: by the loader, then where toolkits are installed.
constexpr const char* kPlaces[] = {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                                   "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                                   "/usr/local/cuda-13.0/lib64/libcupti.so.13"};
constexpr size_t kBufferBytes = size_t{4} << 20;

// CUPTI's functions, found by name.
struct Cupti {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;

  Status check(CUptiResult code, std::string_view doing) const {
    if (code == CUPTI_SUCCESS) return {};
    const char* text = nullptr;
    if (result_string(code, &text) != CUPTI_SUCCESS || text == nullptr) text = "unknown error";
    // Most often that somebody else counts on this GPU already, or that the driver allows it to administrators only.
    return request_error("{}: {}", doing, text);
  }
};

// CUPTI calls back without a pointer of ours, on threads of its own.
struct Recorded {
  std::mutex mutex;
  const Cupti* cupti = nullptr;
  std::vector<GpuActivity> activities;
  size_t dropped = 0;
  Status status;
};
Recorded& recorded() {
  static Recorded r;
  return r;
}

std::string demangled(const char* name) {
  if (name == nullptr) return "unknown kernel";
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return out;
}

GpuActivity of_kernel(const CUpti_ActivityKernel10& k) {
  return {.kind = GpuActivity::Kind::kKernel,
          .name = demangled(k.name),
          .begin = static_cast<int64_t>(k.start),
          .end = static_cast<int64_t>(k.end),
          .grid = {k.gridX, k.gridY, k.gridZ},
          .block = {k.blockX, k.blockY, k.blockZ}};
}

GpuActivity of_copy(const CUpti_ActivityMemcpy6& c) {
  GpuActivity a{.kind = GpuActivity::Kind::kOtherCopy,
                .name = "copy within the device",
                .begin = static_cast<int64_t>(c.start),
                .end = static_cast<int64_t>(c.end),
                .bytes = static_cast<int64_t>(c.bytes)};
  if (c.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD)
    a.kind = GpuActivity::Kind::kToDevice, a.name = "copy to the device";
  if (c.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH) a.kind = GpuActivity::Kind::kToHost, a.name = "copy to the host";
  return a;
}

void keep(Recorded& r, const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      r.activities.push_back(of_kernel(reinterpret_cast<const CUpti_ActivityKernel10&>(record)));
      return;
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      r.activities.push_back(of_copy(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record)));
      return;
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& m = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      r.activities.push_back({.kind = GpuActivity::Kind::kOtherCopy,
                              .name = "clearing memory",
                              .begin = static_cast<int64_t>(m.start),
                              .end = static_cast<int64_t>(m.end),
                              .bytes = static_cast<int64_t>(m.bytes)});
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* size, size_t* most_records) {
  // Records are aligned to 8 bytes; without memory CUPTI drops records and says how many.
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI buffer_done(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid) {
  Recorded& r = recorded();
  {
    const std::lock_guard lock(r.mutex);
    CUpti_Activity* record = nullptr;
    CUptiResult code = CUPTI_SUCCESS;
    while (r.cupti != nullptr && valid > 0 && (code = r.cupti->next_record(buffer, valid, &record)) == CUPTI_SUCCESS)
      keep(r, *record);
    if (code != CUPTI_SUCCESS && code != CUPTI_ERROR_MAX_LIMIT_REACHED && r.status.ok())
      r.status = r.cupti->check(code, "reading CUPTI's records");
    size_t dropped = 0;
    if (r.cupti != nullptr && r.cupti->dropped_records(context, stream, &dropped) == CUPTI_SUCCESS)
      r.dropped += dropped;
  }
  std::free(buffer);
}

template <class F>
Status find(void* library, F& to, const char* name) {
  to = reinterpret_cast<F>(dlsym(library, name));
  if (to == nullptr) return request_error("libcupti lacks {}; profiles need that of CUDA 13", name);
  return {};
}

Result<void*> open_library(const std::string& path) {
  if (!path.empty()) {
    if (void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* const reason = dlerror();
    return request_error("--cupti {}: {}", path, reason == nullptr ? "cannot be opened" : reason);
  }
  for (const char* place : kPlaces)
    if (void* const library = dlopen(place, RTLD_NOW | RTLD_LOCAL)) return library;
  return request_error(
      "there is no libcupti.so.13, which records what a GPU does; it comes with CUDA's toolkit 13 (package "
      "cuda-cupti-13-0): install it, or name the file with --cupti");
}

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

class Profiler final : public CudaProfiler {
 public:
  Status create(const std::string& path) {
    int gpus = 0;  // makes no context yet
    if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpus == 0)
      return request_error("no NVIDIA GPU can be used ({})",
                           code == cudaSuccess ? "there is none" : cudaGetErrorString(code));
    QUIRE_TRY(void* const library, open_library(path));  // stays open: CUPTI has threads in it
    QUIRE_CHECKED(find(library, cupti_.result_string, "cuptiGetResultString"));
    QUIRE_CHECKED(find(library, cupti_.get_version, "cuptiGetVersion"));
    QUIRE_CHECKED(find(library, cupti_.register_callbacks, "cuptiActivityRegisterCallbacks"));
    QUIRE_CHECKED(find(library, cupti_.enable, "cuptiActivityEnable"));
    QUIRE_CHECKED(find(library, cupti_.disable, "cuptiActivityDisable"));
    QUIRE_CHECKED(find(library, cupti_.flush_all, "cuptiActivityFlushAll"));
    QUIRE_CHECKED(find(library, cupti_.next_record, "cuptiActivityGetNextRecord"));
    QUIRE_CHECKED(find(library, cupti_.dropped_records, "cuptiActivityGetNumDroppedRecords"));
    uint32_t version = 0;
    QUIRE_CHECKED(cupti_.check(cupti_.get_version(&version), "asking CUPTI for its version"));
    if (version / 10000 != CUPTI_API_VERSION / 10000)
      return request_error("libcupti is of version {}: profiles need that of CUDA 13 ({})", version, CUPTI_API_VERSION);
    recorded().cupti = &cupti_;
    QUIRE_CHECKED(cupti_.check(cupti_.register_callbacks(buffer_wanted, buffer_done), "registering with CUPTI"));
    for (const CUpti_ActivityKind kind : kKinds)
      QUIRE_CHECKED(cupti_.check(cupti_.enable(kind), "asking CUPTI for what the GPU does"));
    return {};
  }
  ~Profiler() override {
    if (recorded().cupti == nullptr) return;
    // Nobody is left to hear of a failure, and nothing depends on it.
    for (const CUpti_ActivityKind kind : kKinds) (void)cupti_.disable(kind);
    (void)cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const std::lock_guard lock(recorded().mutex);
    recorded().cupti = nullptr;
  }

  Status start() override {
    QUIRE_CHECKED(flush());
    const std::lock_guard lock(recorded().mutex);
    recorded().activities.clear();
    recorded().dropped = 0;
    return {};
  }

  Result<std::vector<GpuActivity>> stop() override {
    QUIRE_CHECKED(flush());
    Recorded& r = recorded();
    const std::lock_guard lock(r.mutex);
    QUIRE_CHECKED(r.status);
    if (r.dropped > 0) return request_error("CUPTI lost {} records: profile a shorter run", r.dropped);
    std::vector<GpuActivity> out = std::exchange(r.activities, {});
    std::sort(out.begin(), out.end(), [](const GpuActivity& a, const GpuActivity& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    return out;
  }

 private:
  Status flush() { return cupti_.check(cupti_.flush_all(0), "collecting CUPTI's records"); }

  Cupti cupti_;
};

}  // namespace

Result<std::unique_ptr<CudaProfiler>> CudaProfiler::create(const std::string& library) {
  auto p = std::make_unique<Profiler>();
  QUIRE_CHECKED(p->create(library));
  return std::unique_ptr<CudaProfiler>(std::move(p));
}

}  // namespace quire
