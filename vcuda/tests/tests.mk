# The shim's tests: programs in C that run under the shim, and pytest that starts them and looks at what came of it.
TESTS := $(B)/tests
PROGRAMS := $(patsubst tests/%.c,$(TESTS)/%,$(wildcard tests/*.c))
UNITS := $(patsubst tests/%.c,$(TESTS)/%,$(wildcard tests/unit/*.c))
PROGRAM_FLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -pthread -Iinclude -Isrc -isystem $(CUDA)

$(TESTS)/unit/%: tests/unit/%.c $(B)/testing/libvcuda.a
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $^ -o $@ -ldl

# As old programs are, linked with the driver and the shim before it only at run time.
$(TESTS)/resolve: tests/resolve.c $(HEADERS)/.fetched simgpu
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -L$(B)/simgpu/12 -l:libcuda.so.1 -ldl

$(TESTS)/%: tests/%.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl

# The shim's own functions, for programs that test them one by one.
$(B)/testing/libvcuda.a: $(filter-out %loader_entry.S.o,$(call OBJECTS,$(B)/testing))
	@rm -f $@
	ar rcs $@ $^

.PHONY: programs
programs: $(B)/testing/libvcuda.so.1 $(PROGRAMS) $(UNITS)

test: all programs simgpu
	PYTHONPATH=tests $(PYTHON) -m pytest -q -p no:cacheprovider tests

# Figures, as JSON rows on standard output.
BENCH := $(B)/bench
$(BENCH)/calls: bench/calls.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -O2 $< -o $@ -ldl
$(BENCH)/null/libcuda.so.1: bench/null_driver.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 -isystem $(CUDA) $< -o $@

.PHONY: bench bench-programs
bench-programs: programs simgpu $(BENCH)/calls $(BENCH)/null/libcuda.so.1
bench: bench-programs
	@$(PYTHON) bench/costs.py
	@$(PYTHON) bench/shares.py
