#include "cli/layer_dump.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "core/output.h"

namespace quire::cli {
namespace {

// NumPy's .npy format, version 1.0: a padded text header, then the elements.
std::string npy_header(const Tensor& t) {
  std::string shape;
  for (int i = 0; i < t.rank; ++i) shape += fmt::format("{}, ", t.dim(i));
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", shape);
  constexpr size_t kPrefix = 10;
  header.append(63 - (kPrefix + header.size()) % 64, ' ');
  header += '\n';
  std::string all("\x93NUMPY\x01\x00", 8);
  all += static_cast<char>(header.size() & 0xff);
  all += static_cast<char>(header.size() >> 8);
  return all + header;
}

bool write_npy(const std::string& path, const Tensor& t) {
  std::FILE* f = std::fopen(path.c_str(), "wb");
  if (f == nullptr) return false;
  const std::string header = npy_header(t);
  const int64_t rows = t.dim(0), row_elems = rows == 0 ? 0 : t.elems() / rows;
  std::vector<float> row(static_cast<size_t>(row_elems));
  bool ok = std::fwrite(header.data(), 1, header.size(), f) == header.size();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < row_elems; ++i) row[static_cast<size_t>(i)] = load_float(t, r * t.stride[0] + i);
    ok = ok && std::fwrite(row.data(), sizeof(float), row.size(), f) == row.size();
  }
  return std::fclose(f) == 0 && ok;
}

}  // namespace

Result<LayerProbe> make_layer_dump(const std::string& dir, const std::shared_ptr<bool>& failed) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return request_error("--dump-layers {}: {}", dir, error.message());
  auto step = std::make_shared<int>(-1);
  return LayerProbe([dir, step, failed](std::string_view name, int layer, const Tensor& t) {
    if (name == "embed") ++*step;
    const std::string where = layer < 0 ? "model" : fmt::format("{:03}", layer);
    const std::string path = fmt::format("{}/{:05}-{}-{}.npy", dir, *step, where, name);
    if (*failed || write_npy(path, t)) return;
    *failed = true;
    tell("cannot write " + path + "; no more is dumped");
  });
}

}  // namespace quire::cli
