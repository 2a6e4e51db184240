"""Programs and drivers that look functions up while others do."""

import platform
import shutil
from pathlib import Path

from node import BUILD, MIB, OUT_OF_MEMORY, Node, ended

UNIT = BUILD / "tests" / "unit"


def test_a_constructor_may_look_the_driver_up_while_another_thread_makes_the_first_call(node: Node) -> None:
    container = node.container("a")
    with ended(container.start("binds", str(UNIT / "constructor.so"))) as program:
        assert program.communicate(timeout=20) == ("0 1\n", "")


if platform.machine() == "x86_64":  # the stub's jumps are of that

    def test_a_driver_that_is_a_stub_before_another_file_works_and_is_limited(node: Node) -> None:
        """WSL2's is one: it looks its functions up in libcuda.so.1.1 by dlsym."""
        folder = node.folder / "stub"
        folder.mkdir()
        real = Path(shutil.copy(BUILD / "simgpu" / "13" / "libcuda.so.1", folder / "libcuda.so.1.1"))
        shutil.copy(UNIT / "stub_driver.so", folder / "libcuda.so.1")
        node.driver = folder
        container = node.container("a", STUB_REAL=str(real))
        answers = container.run("init", "ctx", f"alloc a {500 * MIB}", f"alloc b {500 * MIB}")
        assert [answer[0] for answer in answers] == [0, 0, 0, OUT_OF_MEMORY]
        assert container.charged() == 756 * MIB
