# The shim's tests: programs in C that run under the shim, and pytest that starts them and looks at what came of it.
TESTS := $(B)/tests
PROGRAMS := $(patsubst tests/%.c,$(TESTS)/%,$(wildcard tests/*.c))
PROGRAM_FLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -pthread -Iinclude -Isrc -isystem $(CUDA)

$(TESTS)/%: tests/%.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl

test: all $(B)/testing/libvcuda.so.1 $(PROGRAMS) simgpu
	PYTHONPATH=tests $(PYTHON) -m pytest -q -p no:cacheprovider tests
