# The README's commands. Everything else is CMake: see CMakePresets.json.
BUILD := build/release

.PHONY: demo test soak configure

demo: configure
	@cmake --build --preset release --target quire_program
	$(BUILD)/bin/quire chat --ask "What is Quire?"

test: configure
	@cmake --build --preset release
	ctest --preset release -j 2

soak:
	tools/soak.sh

configure:
	@tools/install_deps.sh build
	@test -f $(BUILD)/build.ninja || cmake --preset release
