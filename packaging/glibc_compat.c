// What archives of a newer system ask of glibc and an older one lacks, for programs that are linked with the older one
// (cmake/QuirePackage.cmake). Each function does what glibc's manual, or its header, says of it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

// glibc 2.32, read by libstdc++'s shared pointers: false means that there may be several threads, which is always
// right.
char __libc_single_threaded = 0;

// glibc 2.36, which libstdc++'s std::random_device reads.
uint32_t arc4random(void) {
  uint32_t value;
  size_t have = 0;
  while (have < sizeof value) {
    const ssize_t n = getrandom((char*)&value + have, sizeof value - have, 0);
    if (n < 0 && errno != EINTR) abort();
    if (n > 0) have += (size_t)n;
  }
  return value;
}

// glibc 2.33: mallinfo with sizes of 64 bits. Where the system has it, it is asked; else mallinfo's sizes of 32 bits are
// taken as numbers without a sign, and what passes 4 GiB is not seen.
struct mallinfo2 mallinfo2(void) {
  struct mallinfo2 (*const of_system)(void) = (struct mallinfo2(*)(void))dlsym(RTLD_NEXT, "mallinfo2");
  if (of_system) return of_system();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo m = mallinfo();
#pragma GCC diagnostic pop
  return (struct mallinfo2){(unsigned)m.arena,    (unsigned)m.ordblks,  (unsigned)m.smblks,   (unsigned)m.hblks,
                            (unsigned)m.hblkhd,   (unsigned)m.usmblks,  (unsigned)m.fsmblks,  (unsigned)m.uordblks,
                            (unsigned)m.fordblks, (unsigned)m.keepcost};
}

// glibc 2.35, which libgcc's unwinder asks where an address's table for exceptions is: the object that holds the
// address, and its PT_GNU_EH_FRAME.
struct Search {
  uintptr_t address;
  struct dl_find_object* found;
  int done;
};

static int look_at(struct dl_phdr_info* info, size_t size, void* argument) {
  (void)size;
  struct Search* const search = argument;
  uintptr_t begin = UINTPTR_MAX, end = 0, frames = 0;
  int within = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* const part = &info->dlpi_phdr[i];
    const uintptr_t at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) frames = at;
    if (part->p_type != PT_LOAD) continue;
    if (at < begin) begin = at;
    if (at + part->p_memsz > end) end = at + part->p_memsz;
    if (search->address >= at && search->address < at + part->p_memsz) within = 1;
  }
  if (!within) return 0;
  search->done = frames != 0;
  search->found->dlfo_map_start = (void*)begin;
  search->found->dlfo_map_end = (void*)end;
  search->found->dlfo_eh_frame = (void*)frames;
  return 1;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  struct Search search = {(uintptr_t)address, found, 0};
  found->dlfo_flags = 0;
  found->dlfo_link_map = 0;
  dl_iterate_phdr(look_at, &search);
  return search.done ? 0 : -1;
}
