#include "cli/quantize/plan.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "arch/tensors.h"
#include "model/weights.h"
#include "quant/format.h"

namespace quire::cli {
namespace {

Result<std::vector<float>> read_factors(const gguf::File& f, const Job& job) {
  const gguf::TensorInfo* scale = find_scale(f, without_weight(job.in->name));
  if (scale == nullptr) return std::vector<float>{};
  if (scale->dtype != DType::kF32 || (scale->elems() != 1 && scale->elems() != job.matrices()))
    return file_error("tensor {}: {} of type {} does not scale {} matrices", gguf::printable(scale->name),
                      gguf::shape_text(*scale), dtype_name(scale->dtype), job.matrices());
  std::vector<float> factors(static_cast<size_t>(job.matrices()));
  for (size_t i = 0; i < factors.size(); ++i)
    std::memcpy(&factors[i], scale->data + (scale->elems() == 1 ? 0 : i * sizeof(float)), sizeof(float));
  return factors;
}

}  // namespace

std::string Job::scale_name() const {
  return fmt::format("{}.scale", without_weight(in->name));
}

Result<std::vector<Job>> plan(const gguf::File& f, const std::vector<Choice>& choices,
                              const quant::Importance* importance) {
  std::vector<Job> jobs;
  std::unordered_set<std::string> absorbed;  // scales that the new encoding takes in
  for (size_t i = 0; i < f.tensors().size(); ++i) {
    const gguf::TensorInfo& t = f.tensors()[i];
    Job job{&t, choices[i], {}};
    if (job.encoded()) {
      QUIRE_CHECKED(quant::check_decodable(t.name, t.dtype));
      QUIRE_TRY(job.factors, read_factors(f, job));
      for (const char* of : {"", ".weight"})
        for (const char* kind : {"scale", "input_scale"})
          absorbed.insert(fmt::format("{}{}.{}", without_weight(t.name), of, kind));
      if (importance != nullptr) QUIRE_CHECKED(importance->check(t.name, t.dims[0], job.matrices()));
    }
    jobs.push_back(std::move(job));
  }
  std::erase_if(jobs, [&](const Job& j) { return absorbed.contains(std::string(j.in->name)); });
  return jobs;
}

Status declare(const Job& job, gguf::Writer& w) {
  const gguf::TensorInfo& t = *job.in;
  const size_t n_dims = t.n_dims == 0 ? 1 : static_cast<size_t>(t.n_dims);
  QUIRE_CHECKED(w.add_tensor(t.name, job.type(), std::span(t.dims).first(n_dims)));
  if (!job.has_scale()) return {};
  const int64_t matrices[] = {job.matrices()};
  return w.add_tensor(job.scale_name(), DType::kF32, matrices);
}

}  // namespace quire::cli
