# The README's commands. Everything else is CMake: see CMakePresets.json.
BUILD := build/release

.PHONY: demo test build deps soak

demo: build
	$(BUILD)/bin/quire chat --ask "What is Quire?"

test: build
	ctest --preset release -j 2

soak: build
	tools/soak.sh

build: deps
	@test -f $(BUILD)/build.ninja || cmake --preset release
	@cmake --build --preset release

deps:
	@tools/install_deps.sh build
