#include "lab/model_source.h"

#include <fmt/format.h>

#include "command/options.h"
#include "lab/synth_image.h"

namespace quire::cli {

void ModelSource::add(Flags& flags) {
  flags.add(kModelNames, &file, kModelHelp);
  flags.add("--synth", &preset, "Instead of a file: random weights, made in memory. Shapes: " + synth_presets());
  synth.add(flags, "--synth");
}

Status ModelSource::check() const {
  if (file.empty() == preset.empty())
    return request_error("give a model: either a file (FILE or -m FILE) or random weights (--synth)");
  return {};
}

Result<std::shared_ptr<const LoadedModel>> ModelSource::load(Device device) const {
  QUIRE_CHECKED(check());
  if (preset.empty()) return load_model(file);
  SynthOptions o = synth;
  o.preset = preset;
  return load_synth_model(o, device == Device::kCuda ? SynthPages::kShared : SynthPages::kOwn);
}

std::string ModelSource::name() const {
  if (preset.empty()) return file;
  std::string s = fmt::format("synthetic {} {}", preset, synth.type);
  if (!synth.ffn_type.empty()) s += fmt::format(", feed-forward {}", synth.ffn_type);
  if (!synth.head_type.empty()) s += fmt::format(", head {}", synth.head_type);
  if (synth.layers) s += fmt::format(", {} layers", *synth.layers);
  if (synth.vocab) s += fmt::format(", vocabulary of {}", *synth.vocab);
  return s;
}

}  // namespace quire::cli
