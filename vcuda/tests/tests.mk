# The shim's tests: programs in C that run under the shim, and pytest that starts them and looks at what came of it.
TESTS := $(B)/tests
ACTOR := $(wildcard tests/actor/*.c)
PROGRAMS := $(patsubst tests/%.c,$(TESTS)/%,$(wildcard tests/*.c tests/programs/*.c)) $(TESTS)/actor
UNITS := $(TESTS)/unit/kill_at_every_instruction $(TESTS)/unit/release_of_the_dead $(TESTS)/unit/refused_ledger $(TESTS)/unit/scan_without_the_lock \
  $(TESTS)/unit/before_the_pause $(TESTS)/unit/spans_overtaken $(TESTS)/unit/frees_overtaken $(TESTS)/unit/reset_in_retain \
  $(TESTS)/unit/late_charges $(TESTS)/unit/grants_taken_back $(TESTS)/unit/handles_overtaken $(TESTS)/unit/pools_overtaken $(TESTS)/unit/rows_of_a_context $(TESTS)/unit/contexts_beside $(TESTS)/unit/older_glibc \
  $(TESTS)/unit/page_that_is_no_good \
  $(TESTS)/unit/full_disk.so $(TESTS)/unit/interrupted.so $(TESTS)/unit/no_wipe.so $(TESTS)/unit/finds_itself.so $(TESTS)/unit/constructor.so $(TESTS)/unit/tool.so \
  $(TESTS)/unit/asks_next.so $(TESTS)/unit/answers_itself.so $(TESTS)/unit/locks_seen.so $(TESTS)/unit/modes_seen.so $(TESTS)/unit/refusing_driver.so \
  $(if $(filter x86_64,$(shell uname -m)),$(TESTS)/unit/launch_instructions $(TESTS)/unit/fork_while_binding $(TESTS)/unit/stub_driver.so)
PROGRAM_FLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -pthread -Iinclude -Isrc -isystem $(CUDA)

$(TESTS)/unit/%: tests/unit/%.c $(B)/testing/libvcuda.a
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $(filter-out %.h,$^) -o $@ -ldl
$(TESTS)/unit/frees_overtaken $(TESTS)/unit/reset_in_retain $(TESTS)/unit/late_charges $(TESTS)/unit/grants_taken_back \
  $(TESTS)/unit/handles_overtaken $(TESTS)/unit/pools_overtaken: tests/unit/played_driver.h

# The C library has one function less.
$(TESTS)/unit/older_glibc: PROGRAM_FLAGS += -Wl,--wrap=real_dlsym

# Its own functions come before those by which the shim looks whether a process is gone.
$(TESTS)/unit/scan_without_the_lock: PROGRAM_FLAGS += -Wl,--wrap=identity_gone,--wrap=ledger_life_ended

$(TESTS)/unit/fork_while_binding: PROGRAM_FLAGS += -Wno-deprecated-declarations # NVML's header

# Whose grant is taken back is granted as much again.
$(TESTS)/unit/grants_taken_back: PROGRAM_FLAGS += -Wl,--wrap=spans_end_unseen,--wrap=helper_start

# A thread stands within the discharge of what was freed.
$(TESTS)/unit/frees_overtaken: PROGRAM_FLAGS += -Wl,--wrap=linear_freed

# A program that has nothing of the shim in it: it is looked at from outside.
$(TESTS)/unit/launch_instructions: tests/unit/launch_instructions.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl

$(TESTS)/unit/stub_driver.so $(TESTS)/unit/refusing_driver.so: src/hooks/hooks.def
$(TESTS)/unit/%.so: tests/unit/%.c
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -fPIC -shared $< -o $@ -ldl

$(TESTS)/unit/asks_next.so: tests/unit/asks_next.c $(HEADERS)/.fetched | simgpu
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -fPIC -shared $< -o $@ -Wl,--no-as-needed -L$(B)/simgpu/12 -l:libcuda.so.1 -l:libnvidia-ml.so.1 -ldl

# As old programs are, linked with the driver and the shim before it only at run time.
$(TESTS)/resolve $(TESTS)/binds: $(TESTS)/%: tests/%.c $(HEADERS)/.fetched | simgpu
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -L$(B)/simgpu/12 -l:libcuda.so.1 -ldl

$(TESTS)/%: tests/%.c tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl

$(TESTS)/copies: tests/programs/program.h
$(TESTS)/programs/%: tests/programs/%.c tests/programs/program.h tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl

$(TESTS)/actor: $(ACTOR) tests/actor/actor.h tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $(ACTOR) -o $@ -ldl

# The shim's own functions, for programs that test them one by one.
$(B)/testing/libvcuda.a: $(filter-out %loader_entry.S.o,$(call OBJECTS,$(B)/testing))
	@rm -f $@
	ar rcs $@ $^

BENCH := $(B)/bench
# A clock that only the programs move, before everything else that they load.
$(BENCH)/virtual_time.so: bench/virtual_time.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -O2 $(WARNINGS) -fPIC -shared -pthread $< -o $@ -ldl

.PHONY: test-programs
test-programs: $(B)/testing/libvcuda.so.1 $(PROGRAMS) $(UNITS) $(TESTS)/actor-asan $(BENCH)/virtual_time.so \
  $(BENCH)/null/libcuda.so.1 $(BENCH)/calls

# Programs that are not ours, from their published wheels: they speak the driver API.
REAL := numba==0.61.2 cuda-bindings==13.5.0 cuda-pathfinder==1.9.0
$(B)/real/.fetched: tests/tests.mk
	$(PYTHON) -m pip install --quiet --upgrade --only-binary=:all: --target $(@D) $(REAL)
	@touch $@

# Numba, CuPy and PyTorch, pinned in frameworks.lock: does each get as far with the shim as without? They take 6 GB and are no part
# of the tests. make frameworks.lock pins anew what frameworks.in asks for.
FRAMEWORKS := tests/frameworks/frameworks
$(B)/frameworks/.fetched: $(FRAMEWORKS).lock
	rm -rf $(@D)
	$(PYTHON) -m pip install --quiet --no-cache-dir --no-deps --only-binary=:all: --require-hashes --target $(@D) -r $<
	@touch $@
.PHONY: programs frameworks.lock
programs: $(B)/testing/libvcuda.so.1 $(B)/frameworks/.fetched | simgpu
	@$(PYTHON) tests/frameworks/compare.py
frameworks.lock:
	$(dir $(PYTHON))uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	  --no-annotate --quiet $(FRAMEWORKS).in --output-file $(FRAMEWORKS).lock

# NVIDIA's runtime, found by its path and linked in as nvcc does by default.
ON_RUNTIMES := $(foreach release,12 13,$(TESTS)/runtime-$(release) $(TESTS)/runtime-shared-$(release))
RUNTIMES := $(TESTS)/cudart $(TESTS)/cudart-12 $(TESTS)/cudart-13 $(TESTS)/runtime_calls $(ON_RUNTIMES)
$(TESTS)/runtime_calls: tests/real/runtime_calls.c tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl
$(TESTS)/cudart: tests/real/cudart.c
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -ldl
$(TESTS)/cudart-%: tests/real/cudart.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -DSTATIC_RUNTIME $< $(HEADERS)/$*/libcudart_static.a -o $@ -ldl -lrt
$(TESTS)/runtime-shared-%: tests/real/runtime.c tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< -o $@ -L$(HEADERS)/$* -l:libcudart.so.$* -Wl,-rpath,$(abspath $(HEADERS)/$*)
$(TESTS)/runtime-%: tests/real/runtime.c tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $< $(HEADERS)/$*/libcudart_static.a -o $@ -ldl -lrt

# Tests mostly wait, for one another's programs and for clocks: two at a time, where pytest-xdist is there.
SIDE_BY_SIDE := $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && echo --numprocesses 2)
PYTEST := PYTHONPATH=tests $(PYTHON) -m pytest -q -p no:cacheprovider -p no:schemathesis $(SIDE_BY_SIDE)

test: layout all shipped test-programs $(RUNTIMES) sanitizers $(B)/real/.fetched
	$(PYTEST) --durations=10 --durations-min=1 tests

# Figures, as JSON rows on standard output.
$(BENCH)/calls: bench/calls.c tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -O2 $< -o $@ -ldl
$(BENCH)/locked_instructions: bench/locked_instructions.c $(B)/testing/libvcuda.a
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -O2 $^ -o $@ -ldl
$(BENCH)/lateness: bench/lateness.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 $< -o $@
$(BENCH)/null/libcuda.so.1: bench/null_driver.c $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 -isystem $(CUDA) $< -o $@

# Programs held to their slices, on the screen.
DRIVER := $(B)/simgpu/13
$(DRIVER)/libcuda.so.1 $(DRIVER)/libnvidia-ml.so.1 &: $(wildcard simgpu/*.c simgpu/*.h simgpu/*.def) $(HEADERS)/.fetched
	$(MAKE) -C simgpu PYTHON="$(PYTHON)" ../build/simgpu/13/libcuda.so.1 ../build/simgpu/13/libnvidia-ml.so.1

.PHONY: demo
demo: $(B)/testing/libvcuda.so.1 $(DRIVER)/libcuda.so.1 $(DRIVER)/libnvidia-ml.so.1 $(TESTS)/spin $(TESTS)/actor $(BENCH)/lateness
	@$(PYTHON) demo.py

.PHONY: bench bench-programs
bench-programs: test-programs simgpu $(BENCH)/calls $(BENCH)/lateness $(BENCH)/null/libcuda.so.1 \
  $(if $(filter x86_64,$(shell uname -m)),$(BENCH)/locked_instructions)
bench: bench-programs
	@$(PYTHON) bench/costs.py
	@$(PYTHON) bench/memory.py
	@$(PYTHON) bench/deck.py
	@$(PYTHON) bench/shares.py
	@$(PYTHON) bench/virtual_shares.py

# The shim, and its threads and parsers alone, under the sanitizers.
ASAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
$(eval $(call LIBRARY,$(B)/asan,-DVCUDA_TESTING $(ASAN)))
ALONE := $(filter-out src/loading/loader.c src/loading/real_dlsym.c,$(filter %.c,$(SOURCES)))
UNDER_TSAN := $(patsubst tests/%.c,$(TESTS)/%-tsan,$(filter-out %/neighbour.c,$(wildcard tests/programs/*.c)))
SANITIZED := $(TESTS)/actor-asan $(TESTS)/threads-tsan $(TESTS)/launching-tsan $(UNDER_TSAN) $(TESTS)/threads-asan $(TESTS)/parsers-asan \
  $(TESTS)/ledger_contents-asan
$(TESTS)/ledger_contents-asan: ALL_CFLAGS += $(SOON)
SOON := -DLEDGER_LOCK_MS=5 -DCHARGE_WAIT_MS=5 # what never was is not waited for so long

# Everything but the loader's part, in one program: TSan wants the whole program compiled for it.
TSAN := -fsanitize=thread -Wno-tsan
$(eval $(call LIBRARY,$(B)/tsan,-DVCUDA_TESTING $(TSAN)))
$(B)/tsan/libvcuda.a: $(filter-out %/loader.c.o %/real_dlsym.c.o %/loader_entry.S.o,$(call OBJECTS,$(B)/tsan))
	@rm -f $@
	ar rcs $@ $^
TSAN_FLAGS := -fno-pie -no-pie -rdynamic -DVCUDA_TESTING $(TSAN)
WHOLE_ARCHIVE = -Wl,--whole-archive $(filter %.a,$^) -Wl,--no-whole-archive
$(TESTS)/programs/%-tsan: tests/programs/%.c tests/programs/program.h $(B)/tsan/libvcuda.a
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) $(TSAN_FLAGS) -DSHIM_LINKED_IN $(filter %.c,$^) $(WHOLE_ARCHIVE) -o $@ -ldl
$(TESTS)/%-tsan: tests/unit/%.c tests/unit/no_loader.c $(B)/tsan/libvcuda.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(TSAN_FLAGS) $(filter %.c,$^) $(WHOLE_ARCHIVE) -o $@ -ldl
$(TESTS)/%-asan: tests/unit/%.c tests/unit/no_loader.c $(ALONE) $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -DVCUDA_TESTING $(ASAN) $(filter %.c,$^) -o $@ -ldl

# libFuzzer on every parser, and on a ledger that is overwritten, where clang is there: make fuzz FUZZ_SECONDS=600. What it
# keeps is in build/fuzz/corpus and build/fuzz/ledgers.
FUZZ := $(B)/fuzz
FUZZ_SECONDS ?= 60
FUZZED := tests/unit/parsers.c src/loading/config_file.c src/loading/identity.c src/time/turns.c src/memory/image.c
$(FUZZ)/parsers: $(FUZZED) $(INCLUDED)
	@mkdir -p $(@D)
	clang -std=c11 -D_GNU_SOURCE -O1 -g $(WARNINGS) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	  -DVCUDA_LIBFUZZER -Iinclude -Isrc $(FUZZED) -o $@
$(FUZZ)/ledger_contents: tests/unit/ledger_contents.c tests/unit/no_loader.c $(ALONE) $(INCLUDED)
	@mkdir -p $(@D)
	clang $(ALL_CFLAGS) -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -DVCUDA_TESTING $(SOON) \
	  -DVCUDA_LIBFUZZER $(filter %.c,$^) -o $@ -ldl
# What the fuzzer kept of a ledger's inputs; what it finds is added:  python tests/unit/inputs.py pack FOLDER $(KEPT)
KEPT := tests/unit/ledger_contents.txt
.PHONY: fuzz
fuzz: $(FUZZ)/parsers $(TESTS)/parsers-asan $(FUZZ)/ledger_contents
	@mkdir -p $(FUZZ)/corpus $(FUZZ)/ledgers
	$(PYTHON) tests/unit/inputs.py unpack $(KEPT) $(FUZZ)/ledgers
	$(FUZZ)/ledger_contents -max_total_time=$(FUZZ_SECONDS) -max_len=1024 -timeout=10 -detect_leaks=0 -print_final_stats=1 \
	  -artifact_prefix=$(FUZZ)/ $(FUZZ)/ledgers
	$(TESTS)/parsers-asan seeds $(FUZZ)/corpus
	$(FUZZ)/parsers -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -print_final_stats=1 -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus

# A program that has a sanitizer of its own.
$(TESTS)/actor-asan: $(ACTOR) tests/actor/actor.h tests/kernels.h $(HEADERS)/.fetched
	@mkdir -p $(@D)
	$(CC) $(PROGRAM_FLAGS) -fsanitize=address $(ACTOR) -o $@ -ldl

UNDER_ASAN := random_calls memory contexts kinds pools forms refusals sharing reports bad_input deck_in_real_time
.PHONY: sanitizers
sanitizers: test-programs simgpu $(B)/asan/libvcuda.so.1 $(SANITIZED)
	$(TESTS)/parsers-asan 1 $(if $(CI),60000,15000)
	ASAN_OPTIONS=detect_leaks=0 $(TESTS)/ledger_contents-asan 1 $(if $(CI),3000,1000) $(KEPT)
	@truncate -s 0 $(B)/ledger && truncate -s 4M $(B)/ledger
	setarch -R $(TESTS)/threads-tsan $(B)/ledger 1500
	$(TESTS)/threads-asan $(B)/ledger 1500
	VCUDA_TEST_LIBRARY=$(abspath $(B))/asan/libvcuda.so.1 \
	  VCUDA_TEST_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so) \
	  $(PYTEST) $(UNDER_ASAN:%=tests/test_%.py)

# The same programs on a real GPU, where there is one. Says so, and fails, where there is none. Without a network the folder
# build/headers has to be brought along, or with GPU_BUILT=1 all of build.
ON_GPU := $(B)/testing/libvcuda.so.1 $(foreach program,actor resolve churn spin,$(TESTS)/$(program)) \
  $(patsubst tests/%.c,$(TESTS)/%,$(wildcard tests/programs/*.c)) $(BENCH)/calls $(ON_RUNTIMES)
# The eight minutes of all parts begin with the build.
BEGAN := $(if $(filter gpu,$(MAKECMDGOALS)),$(shell date +%s))
.PHONY: gpu
gpu: $(if $(GPU_BUILT),,$(ON_GPU))
	VCUDA_GPU_BEGAN=$(BEGAN) $(PYTHON) tests/gpu/real.py $(PARTS)
