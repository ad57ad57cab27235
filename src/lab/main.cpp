// Compiled for plain x86-64 (see cmake/QuireLayer.cmake): an older CPU must reach the message of cpu_suffices.
#include "command/cpu_check.h"
#include "lab/commands.h"

int main(int argc, char** argv) {
  return quire::cli::cpu_suffices() ? quire::cli::run_program(quire::cli::kLab, argc, argv) : 2;
}
