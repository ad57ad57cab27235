// What tests of loading share: a model's file, changed, and what loading it says.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "model/model.h"
#include "support/gguf_edit.h"
#include "support/tiny_models.h"

namespace quire::test {

// A model file and its model.
struct Opened {
  gguf::File file;
  Result<std::unique_ptr<const Model>> model;
  explicit Opened(const std::string& path)
      : file(std::move(gguf::File::open(path)).value()), model(Model::load(file)) {}
  std::string error() const { return model.ok() ? "" : model.error().message; }
};

// What Model::load says to a small model with changes; empty: nothing.
class Edited {
 public:
  explicit Edited(const std::string& name) {
    for (const TinyModel& m : tiny_models())
      if (m.name == name) model_ = m;
    EXPECT_EQ(model_.name, name);
    original_ = std::make_unique<TinyModelFile>(model_);
    path_ = original_->path() + ".edited";
  }
  ~Edited() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const TinyModel& model() const { return model_; }
  std::string original() const { return original_->path(); }
  Opened open(const GgufEdit& edit) const {
    edit_gguf(original_->path(), path_, edit);
    return Opened(path_);
  }
  std::string error(const GgufEdit& edit) const { return open(edit).error(); }
  // With one key of the architecture set.
  template <class T>
  std::string with(const std::string& key, T value) const {
    const std::string full = model_.architecture + "." + key;
    return error({.drop = {full}, .metadata = [&](gguf::Writer& w) { w.add(full, value); }});
  }

 private:
  TinyModel model_;
  std::unique_ptr<TinyModelFile> original_;
  std::string path_;
};

}  // namespace quire::test
