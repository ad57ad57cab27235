// What a model's vision tower makes of a picture, for scripts that compare it with other programs:
//   tower_tool MODEL PICTURE    a line "TOKENS WIDTH LEVELS", then float32: rows, and of each level of deepstack rows
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "engine/loaded_model.h"
#include "image/decode.h"
#include "image/prepare.h"

namespace {

using namespace quire;

template <class T>
T value_or_exit(Result<T> r) {
  if (r.ok()) return std::move(r).value();
  std::fprintf(stderr, "%s\n", r.error().message.c_str());
  std::exit(1);
}

image::Patches read_picture(const char* path, const image::ImageSpec& spec) {
  std::ifstream in(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  const image::Pixels pixels = value_or_exit(image::decode(std::as_bytes(std::span(file)), {}));
  return value_or_exit(image::prepare(pixels, spec));
}

void print_rows(const VisionTower& tower, const image::Patches& patches) {
  const VisionConfig& c = tower.config();
  const ImageGrid grid{1, patches.plan.rows, patches.plan.columns};
  const VisionBatch batch = value_or_exit(VisionBatch::make(c, std::span(&grid, 1)));
  const int64_t tokens = batch.tokens(), levels = std::ssize(c.deepstack);
  std::vector<float> rows(static_cast<size_t>((1 + levels) * tokens * c.out_width));
  VisionOutput out{make_tensor(rows.data(), {tokens, c.out_width}), {}};
  if (levels > 0) out.deepstack = make_tensor(rows.data() + tokens * c.out_width, {levels, tokens, c.out_width});
  ThreadPool pool(2);
  Workspace workspace;
  const OpContext ctx{pool, workspace, {.device = Device::kReference}};
  auto* const bytes = const_cast<uint8_t*>(patches.bytes().data());
  tower.forward(ctx, make_tensor(bytes, DType::kI8, {batch.patches(), c.patch_bytes()}), batch.arrays(), out);
  std::printf("%ld %ld %ld\n", static_cast<long>(tokens), static_cast<long>(c.out_width), static_cast<long>(levels));
  std::fwrite(rows.data(), sizeof(float), rows.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tower_tool MODEL PICTURE\n");
    return 2;
  }
  const auto model = value_or_exit(load_model(argv[1]));
  if (!model->vision) {
    std::fprintf(stderr, "%s has no vision tower\n", argv[1]);
    return 1;
  }
  print_rows(*model->vision->tower, read_picture(argv[2], model->vision->spec));
  return 0;
}
