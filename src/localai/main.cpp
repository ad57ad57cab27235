// Compiled for plain x86-64 (see cmake/QuireLayer.cmake): an older CPU must reach the message of cpu_suffices.
#include "command/cpu_check.h"
#include "localai/command.h"

int main(int argc, char** argv) {
  return quire::cli::cpu_suffices() ? quire::cli::run_program(quire::cli::kLocalAi, argc, argv) : 2;
}
