// Compiled for plain x86-64 (see cmake/QuireLayer.cmake): an older CPU must reach the message of cpu_suffices.
#include "cli/commands.h"
#include "command/cpu_check.h"

int main(int argc, char** argv) {
  return quire::cli::cpu_suffices() ? quire::cli::run_program(quire::cli::kQuire, argc, argv) : 2;
}
