# For the Makefile above: the simulated GPU, before what runs on it, and its own tests.
.PHONY: simgpu simgpu-test
simgpu:
	$(MAKE) -C simgpu PYTHON="$(PYTHON)"

simgpu-test:
	$(MAKE) -C simgpu test PYTHON="$(PYTHON)"

test: simgpu-test
