// Lets the NVIDIA driver fail; preloaded into a program with the CUDA runtime, which asks dlsym for
// cuGetProcAddress, and that for all else. The file that QUIRE_DRIVER_FAULT names says what fails from now
// on; without it nothing does:
//   memory     every allocation of GPU or pinned memory, and every graph
//   memory N   the N-th allocation that the process makes
//   other      the GPU says that it is one of compute capability 11.0, for which no preset has kernels
//   trap       behind the next work runs a kernel that ends with a fault
//   spin       behind it runs one that takes a minute
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOutOfMemory = 2, kMajor = 75, kMinor = 76 };

static const char kKernels[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry trap() { trap; }\n"
    ".visible .entry spin() {\n"
    "  .reg .u64 %now, %end; .reg .pred %more;\n"
    "  mov.u64 %end, %globaltimer; add.u64 %end, %end, 60000000000;\n"
    "again: mov.u64 %now, %globaltimer; setp.lt.u64 %more, %now, %end; @%more bra again;\n"
    "}\n";

static atomic_int num_allocations, num_started;

// What the file says, at most 31 characters; the number behind the word, or 0.
static int fault(char* word) {
  int number = 0;
  word[0] = 0;
  const char* path = getenv("QUIRE_DRIVER_FAULT");
  FILE* file = path ? fopen(path, "r") : NULL;
  if (!file) return 0;
  if (fscanf(file, "%31s %d", word, &number) < 1) word[0] = 0;
  fclose(file);
  return number;
}

static int fails_to_allocate(void) {
  char word[32];
  const int number = fault(word), count = ++num_allocations;
  return strcmp(word, "memory") == 0 && (number == 0 || number == count);
}

static int (*real_get)(const char*, void**, int, uint64_t, void*);
static int (*real_malloc)(void*, size_t);
static int (*real_host_alloc)(void**, size_t, unsigned);
static int (*real_instantiate)(void**, void*, unsigned long long);
static int (*real_attribute)(int*, int, int);
static int (*real_graph_launch)(void*, void*);

static int failing_malloc(void* pointer, size_t bytes) {
  return fails_to_allocate() ? kOutOfMemory : real_malloc(pointer, bytes);
}

static int failing_host_alloc(void** pointer, size_t bytes, unsigned flags) {
  return fails_to_allocate() ? kOutOfMemory : real_host_alloc(pointer, bytes, flags);
}

static int failing_instantiate(void** executable, void* graph, unsigned long long flags) {
  return fails_to_allocate() ? kOutOfMemory : real_instantiate(executable, graph, flags);
}

static int failing_attribute(int* value, int attribute, int device) {
  char word[32];
  fault(word);
  if (strcmp(word, "other") != 0 || (attribute != kMajor && attribute != kMinor))
    return real_attribute(value, attribute, device);
  *value = attribute == kMajor ? 11 : 0;
  return 0;
}

static void* symbol_of(const char* name) {
  void* pointer = NULL;
  real_get(name, &pointer, 12000, 0, NULL);
  return pointer;
}

static void start_kernel(void* stream) {
  char word[32];
  fault(word);
  if ((strcmp(word, "trap") != 0 && strcmp(word, "spin") != 0) || num_started++ > 0) return;
  int (*load)(void**, const void*) = symbol_of("cuModuleLoadData");
  int (*find)(void**, void*, const char*) = symbol_of("cuModuleGetFunction");
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                void**) = symbol_of("cuLaunchKernel");
  void *module = NULL, *function = NULL;
  if (load(&module, kKernels) || find(&function, module, word) ||
      launch(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL))
    fprintf(stderr, "failing_driver: %s cannot run\n", word);
}

static int failing_graph_launch(void* executable, void* stream) {
  start_kernel(stream);
  return real_graph_launch(executable, stream);
}

static void* replaced(const char* name, void* real) {
  if (strcmp(name, "cuMemAlloc") == 0) return real_malloc = real, (void*)failing_malloc;
  if (strcmp(name, "cuMemHostAlloc") == 0) return real_host_alloc = real, (void*)failing_host_alloc;
  if (strcmp(name, "cuGraphInstantiateWithFlags") == 0)
    return real_instantiate = real, (void*)failing_instantiate;
  if (strcmp(name, "cuGraphInstantiate") == 0) return real_instantiate = real, (void*)failing_instantiate;
  if (strcmp(name, "cuDeviceGetAttribute") == 0) return real_attribute = real, (void*)failing_attribute;
  if (strcmp(name, "cuGraphLaunch") == 0) return real_graph_launch = real, (void*)failing_graph_launch;
  return real;
}

static int failing_get(const char* name, void** pointer, int version, uint64_t flags, void* status) {
  const int code = real_get(name, pointer, version, flags, status);
  if (code == 0 && pointer && *pointer) {
    if (strncmp(name, "cuGetProcAddress", 16) == 0)
      *pointer = (void*)failing_get;
    else
      *pointer = replaced(name, *pointer);
  }
  return code;
}

void* dlsym(void* handle, const char* name) {
  static void* (*real_dlsym)(void*, const char*);
  if (!real_dlsym) real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  void* found = real_dlsym(handle, name);
  if (found && strncmp(name, "cuGetProcAddress", 16) == 0) {
    real_get = found;  // of version 2, or of 1, which leaves its fifth argument alone
    return (void*)failing_get;
  }
  return found;
}
