// What a model would need and reach on this machine, from its shape alone: before it is downloaded, or run.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "convert/hf_config.h"
#include "gguf/reader.h"
#include "hub/choose.h"

namespace quire::cli {

inline constexpr int64_t kForecastRows = 512;  // of a step, as the engine's default

// Where it would run.
struct ThisMachine {
  std::string device;    // "cpu, 2 CPUs", "cuda:0, NVIDIA H100"
  hub::Place place;      // memory that may be taken
  double bandwidth = 0;  // bytes a second that are read, measured

  // Takes a quarter of a second on a CPU. An error where there is no such GPU.
  static Result<ThisMachine> measure(const std::string& device, int gpu);
};

// Of a model's shape. Bytes.
struct ModelNeeds {
  std::string problem;          // why it would not run; empty: it would, where memory suffices
  int64_t trained_context = 0;  // tokens; 0: not known
  double weights = 0;
  double token_weights = 0;  // of them, read for a token of one sequence
  // Keys and values of one position, but for those of layers that attend to a window of so many positions. What is read
  // of them is more than what is held where several layers attend to the same.
  struct Kv {
    double held = 0, read = 0;
  } token_kv, window_kv;
  int64_t window = 0;
  double state = 0;  // recurrent states of one sequence, read for every token
  double step = 0;   // intermediates of a step

  // Of keys and values that are read for a token with so many positions before it; and of those that are held then,
  // with a step's.
  double kv_read(int64_t context) const;
  double kv_held(int64_t context) const;

  static ModelNeeds of(const gguf::File& file);
  // Of a folder: `bytes` of safetensors. Shares are counted from config.json, as if all tensors were of one type.
  static ModelNeeds of(const convert::HfConfig& config, double bytes);
};

struct Forecast {
  double needed = 0;  // bytes, with one sequence of the context that was asked about
  bool fits = false;
  int64_t longest_context = 0;  // tokens of one sequence; 0: not even one
  double token_bytes = 0;       // read for a token at that context
  double rate = 0;              // tokens a second at most
};

// `scale`: the weights' bytes beside those of `needs`, for another quantisation of the same model.
Forecast forecast(const ModelNeeds& needs, double scale, const ThisMachine& machine, int64_t context);

// Lines on standard output, or members "here" and "forecast" of `json` if that is not null.
void report_machine(const ThisMachine& machine, nlohmann::ordered_json* json);
void report_forecast(const ModelNeeds& needs, const ThisMachine& machine, int64_t context,
                     nlohmann::ordered_json* json);

}  // namespace quire::cli
