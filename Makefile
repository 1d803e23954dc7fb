# The README's commands. Everything else is CMake: see CMakePresets.json.
BUILD := build/release
# With nvcc and a GPU here, the CUDA backend for that GPU.
CAPABILITY := $(shell command -v nvcc >/dev/null && nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
                      head -n 1 | tr -d . | sed s/^90$$/90a/)
GPU := $(if $(CAPABILITY),-DQUIRE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$(CAPABILITY)-real)
# With Open MPI here, ranks in several processes.
MPI := $(if $(shell command -v mpicc),-DQUIRE_MPI=ON)

.PHONY: demo test soak configure

demo: configure
	@cmake --build --preset release --target quire_program
	$(BUILD)/bin/quire chat --ask "What is Quire?"

test: configure
	@cmake --build --preset release
	$(if $(shell command -v python3),tools/run_tests.py $(BUILD) -j 2,ctest --preset release -j 2)

soak:
	tools/soak.sh

configure:
	@tools/install_deps.sh build
	@test -f $(BUILD)/build.ninja || cmake --preset release $(GPU) $(MPI)
