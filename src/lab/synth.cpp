// quire synth: a model file of real shapes with random weights, to measure speed with. Its text is noise.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "command/display.h"
#include "core/output.h"
#include "core/progress.h"
#include "lab/commands.h"
#include "lab/synth_model.h"
#include "lab/synth_tower.h"

namespace quire::cli {
namespace {

struct SynthCommand : SynthOptions {
  std::string output;
};

Status synth(const SynthCommand& o) {
  QUIRE_TRY(const SynthModel model, SynthModel::choose(o));
  gguf::Writer w;
  QUIRE_CHECKED(model.declare(w));
  QUIRE_CHECKED(w.open(o.output));
  Progress progress("writing", static_cast<int64_t>(w.file_bytes()), Progress::Unit::kBytes);
  std::vector<std::byte> bytes;
  const auto write = [&](const SynthPayload& payload) {
    bytes.resize(payload.bytes);
    payload.copy_to(bytes.data());
    progress.add(static_cast<int64_t>(bytes.size()));
    return w.write_tensor(bytes);
  };
  QUIRE_CHECKED(model.fill(write));
  QUIRE_CHECKED(w.finish());
  const SynthShape& shape = model.shape();
  print_out("{}: {} ({}), {} layers, {}\n", o.output, shape.name, shape.summary, shape.layers,
            human_bytes(w.file_bytes()));
  if (!o.images) return {};
  const std::filesystem::path path(o.output);
  const std::string tower = path.parent_path() / ("mmproj-" + path.filename().string());
  QUIRE_TRY(const uint64_t size, write_synth_tower(shape, o.seed, tower));
  print_out("{}: its vision tower, {}\n", tower, human_bytes(size));
  return {};
}

}  // namespace

Action add_synth(Flags& flags) {
  auto o = std::make_shared<SynthCommand>();
  flags.add("-o,--output,OUTPUT FILE", &o->output, "File to write").required();
  flags.add("--preset", &o->preset, "Shapes: " + synth_presets());
  o->add(flags);
  flags.add("--images", &o->images, "With a vision tower in a file of its own, mmproj-FILE, where the model has one");
  flags.add("--seed", &o->seed, "Seed of the random weights").any_bits();
  return [o] { return synth(*o); };
}

}  // namespace quire::cli
