#include "cli/model_source.h"

#include <fmt/format.h>

#include "cli/options.h"
#include "cli/synth_image.h"

namespace quire::cli {

void ModelSource::add(CLI::App& app) {
  app.add_option(kModelNames, file, kModelHelp)->type_name("FILE");
  CLI::Option* const of = app.add_option(
      "--synth", preset, "Instead of a file: random weights, made in memory. Shapes: " + synth_presets());
  for (CLI::Option* option : synth.add(app)) option->needs(of);
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
