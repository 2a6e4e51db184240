# For the Makefile above: the simulated GPU, before what runs on it.
.PHONY: simgpu
simgpu:
	$(MAKE) -C simgpu PYTHON="$(PYTHON)"
