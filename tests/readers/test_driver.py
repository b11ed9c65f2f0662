from __future__ import annotations

from pathlib import Path

import pytest
from support import Content, tree

from gpucheck.facts import Driver
from gpucheck.readers import driver

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (builder@host)\n"
    "GCC version:  gcc version 14.2.0\n"
)
RELEASE = "5.15.0-91-generic"
WHOLE: dict[str, Content] = {
    "/proc/sys/kernel/osrelease": f"{RELEASE}\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz ro nomodeset quiet\n",
    "/proc/modules": "nvidia_uvm 1523712 0 - Live 0x0 (POE)\nnvidia 56508416 2 nvidia_uvm, Live 0x0 (POE)\n"
    "snd 1 0 - Live 0x0\n",
    "/proc/driver/nvidia/version": PROPRIETARY,
    f"/lib/modules/{RELEASE}/modules.dep": "kernel/drivers/net/tun.ko:\nupdates/dkms/nvidia.ko.zst: a.ko\n",
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": Path("libnvidia-ml.so.535.129.03"),
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535.129.03": "",
    "/dev/nvidia0": "",
    "/dev/nvidia10": "",
    "/dev/nvidia2": "",
    "/dev/nvidiactl": "",
    "/dev/nvidia-uvm": "",
    "/sys/firmware/efi/systab": "",
    driver.SECURE_BOOT: b"\6\0\0\0\1",
    "/etc/modprobe.d/blacklist.conf": "# cards\nblacklist nouveau\noptions nouveau modeset=0\nblacklist nvidiafb\n",
    "/run/lock/x": "",
}


def read(root: Path, changes: dict[str, Content] | None = None, without: tuple[str, ...] = ()) -> Driver:
    files = {path: content for path, content in WHOLE.items() if not path.startswith(without)}
    found = driver.read(tree(root, files | (changes or {}))).driver
    assert found is not None
    return found


def test_a_whole_machine(tmp_path: Path) -> None:
    parts = driver.read(tree(tmp_path, WHOLE))
    assert parts.gaps == ()
    assert parts.driver == Driver(
        loaded_modules=("nvidia", "nvidia_uvm"),
        nvidia_version="535.129.03",
        nvidia_flavour="proprietary",
        nvidia_module_installed=True,
        library_versions=("535.129.03",),
        device_files=("/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia10"),
        kernel_release=RELEASE,
        kernel_command_line="nomodeset",
        efi_boot=True,
        secure_boot=True,
        blacklisted_modules=("nouveau",),
        fabric_manager_running=False,
    )


def test_of_the_kernels_options_only_those_about_cards_are_facts(tmp_path: Path) -> None:
    meant = (
        "nomodeset pci=realloc,hpmmioprefsize=32G iommu=pt intel_iommu=on amd_iommu=off "
        "module_blacklist=nouveau,nvidia modprobe.blacklist=nvidia rd.driver.blacklist=nouveau "
        "vfio-pci.ids=10de:1b38 pci-stub.ids=10de:1b38 "
        "nouveau.modeset=0 nvidia-drm.modeset=1 nvidia.NVreg_EnableGpuFirmware=0 recovery"
    )
    others = "BOOT_IMAGE=/x root=UUID=1 ip=192.0.2.7 inst.rootpw=hush url=http://a:hush@h/?pci=no systemd.x=1"
    read = driver.read(tree(tmp_path, {"/proc/cmdline": f"{others} {meant}\n"})).driver
    assert read is not None
    assert read.kernel_command_line == meant
    assert driver.options_that_matter(others) == ""


def test_nothing_that_can_be_read_is_all_gaps(tmp_path: Path) -> None:
    parts = driver.read(tree(tmp_path, {}))
    assert parts.driver == Driver()
    assert {gap.fact for gap in parts.gaps} == {
        f"driver.{fact}" for fact in Driver.model_fields if fact not in ("nvidia_flavour", "module_kernels")
    }
    assert all(gap.how for gap in parts.gaps)


def test_in_a_container_the_reason_is_the_container(tmp_path: Path) -> None:
    parts = driver.read(tree(tmp_path, {"/.dockerenv": "", "/sys/firmware": None, **{"/proc/cmdline": "ro"}}))
    reasons = {gap.fact: gap.reason for gap in parts.gaps}
    assert reasons["driver.efi_boot"] == "in-container"
    assert reasons["driver.loaded_modules"] == "in-container"


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [(PROPRIETARY, "535.129.03", "proprietary"), (OPEN, "560.35.03", "open")],
)
def test_version_and_flavour(text: str, version: str, flavour: str) -> None:
    assert driver.parse_nvidia_version(text) == (version, flavour)


def test_a_version_file_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="Kernel Module"):
        driver.parse_nvidia_version("NVRM version: nothing known\n")


def test_version_from_sysfs_leaves_the_flavour_open(tmp_path: Path) -> None:
    host = tree(
        tmp_path,
        {key: value for key, value in WHOLE.items() if key != "/proc/driver/nvidia/version"}
        | {"/sys/module/nvidia/version": "550.54.14\n"},
    )
    parts = driver.read(host)
    assert parts.driver is not None
    assert (parts.driver.nvidia_version, parts.driver.nvidia_flavour) == ("550.54.14", None)
    assert [gap.fact for gap in parts.gaps] == ["driver.nvidia_flavour"]


def test_a_module_that_is_not_loaded_has_no_version_and_no_gap(tmp_path: Path) -> None:
    files = {key: value for key, value in WHOLE.items() if key != "/proc/driver/nvidia/version"}
    parts = driver.read(tree(tmp_path, files | {"/proc/modules": "nouveau 2306048 0 - Live 0x0\n"}))
    assert parts.driver is not None
    assert (parts.driver.loaded_modules, parts.driver.nvidia_version) == (("nouveau",), None)
    assert parts.gaps == ()


def test_loaded_modules_from_sysfs(tmp_path: Path) -> None:
    found = read(tmp_path, {"/sys/module/nouveau/refcnt": "0", "/sys/module/tun/refcnt": "0"}, ("/proc/modules",))
    assert found.loaded_modules == ("nouveau",)


@pytest.mark.parametrize(
    ("path", "is_module"),
    [
        ("updates/dkms/nvidia.ko", True),
        ("updates/dkms/nvidia.ko.zst", True),
        ("extra/nvidia.ko.xz", True),
        ("kernel/nvidia-535/nvidia.ko", True),
        ("updates/dkms/nvidia-current.ko.xz", True),
        ("updates/dkms/nvidia-current-open.ko", True),
        ("updates/dkms/nvidia-tesla-470.ko", True),
        ("updates/dkms/nvidia-legacy-390xx.ko", True),
        ("updates/dkms/nvidia-drm.ko", False),
        ("updates/dkms/nvidia-uvm.ko.zst", False),
        ("updates/dkms/nvidia-current-modeset.ko", False),
        ("kernel/drivers/video/fbdev/nvidia/nvidiafb.ko", False),
        ("kernel/drivers/platform/x86/nvidia-wmi-ec-backlight.ko", False),
        ("kernel/drivers/usb/typec/altmodes/typec_nvidia.ko", False),
    ],
)
def test_which_file_is_the_main_module(path: str, is_module: bool) -> None:
    assert driver.is_nvidia_module(path) is is_module
    assert driver.parse_modules_dep(f"kernel/fs/xfs.ko:\n{path}: kernel/x.ko\n") is is_module


def test_module_as_a_dependency_alone_does_not_count() -> None:
    assert not driver.parse_modules_dep("updates/dkms/nvidia-drm.ko: updates/dkms/nvidia.ko\n")


def test_installed_for_another_kernel_only(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            f"/lib/modules/{RELEASE}/modules.dep": "kernel/fs/xfs.ko:\n",
            "/lib/modules/5.4.0-1-generic/modules.dep": "updates/dkms/nvidia.ko:\n",
        },
    )
    assert found.nvidia_module_installed is False
    assert found.module_kernels == ("5.4.0-1-generic",)


def test_other_kernels_are_looked_at_only_where_the_running_one_lacks_the_module(tmp_path: Path) -> None:
    found = read(tmp_path, {"/lib/modules/5.4.0-1-generic/updates/dkms/nvidia.ko": ""})
    assert (found.nvidia_module_installed, found.module_kernels) == (True, None)


def test_no_other_kernel_has_it_either(tmp_path: Path) -> None:
    files = {f"/lib/modules/{RELEASE}/modules.dep": "\n", "/lib/modules/5.4.0-1-generic/modules.dep": "\n"}
    assert read(tmp_path, files).module_kernels == ()


def test_what_akmods_built(tmp_path: Path) -> None:
    files = {f"/lib/modules/{RELEASE}/modules.dep": "\n", f"/lib/modules/{RELEASE}/extra/nvidia/nvidia.ko.xz": ""}
    assert read(tmp_path, files).nvidia_module_installed is True


def test_built_by_dkms_but_not_in_the_list_yet(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            f"/lib/modules/{RELEASE}/modules.dep": "kernel/fs/xfs.ko:\n",
            f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko.xz": "",
        },
    )
    assert found.nvidia_module_installed is True


def test_library_versions_are_numbers_in_order() -> None:
    names = ["libnvidia-ml.so.1", "libnvidia-ml.so.550.127.08", "libnvidia-ml.so.550.54", "libnvidia-ml.so"]
    assert driver.library_versions([*names, "libnvidia-ml.so.550.54", "libcuda.so.1.1"]) == (
        "550.54",
        "550.127.08",
    )


def test_library_folder_without_a_library_is_known_to_hold_none(tmp_path: Path) -> None:
    found = read(tmp_path, {"/usr/lib64": None}, ("/usr/lib/x86_64",))
    assert found.library_versions == ()


def test_no_device_files(tmp_path: Path) -> None:
    assert read(tmp_path, {"/dev/null": ""}, ("/dev/",)).device_files == ()


def test_legacy_boot(tmp_path: Path) -> None:
    assert read(tmp_path, {"/sys/firmware/acpi/x": ""}, ("/sys/firmware",)).efi_boot is False


@pytest.mark.parametrize(
    ("content", "on"),
    [(b"\6\0\0\0\0", False), (b"\6\0\0\0\1", True), (b"\1", None), (b"\6\0\0\0\7", None), (b"", None)],
)
def test_secure_boot(tmp_path: Path, content: bytes, on: bool | None) -> None:
    assert read(tmp_path, {driver.SECURE_BOOT: content}).secure_boot is on


def test_legacy_boot_has_no_secure_boot(tmp_path: Path) -> None:
    assert read(tmp_path, {"/sys/firmware/acpi/x": ""}, ("/sys/firmware",)).secure_boot is False


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("blacklist nvidia\n", {"nvidia"}),
        ("  blacklist  nouveau  \nblacklist nvidia-drm\n", {"nouveau"}),
        ("install nvidia /bin/false\n", {"nvidia"}),
        ("# blacklist nvidia\noptions nvidia NVreg_X=1\nblacklist nvidiafb\nalias nouveau off\n", set()),
    ],
)
def test_blacklist(text: str, found: set[str]) -> None:
    assert driver.parse_blacklist(text) == found


@pytest.mark.parametrize(
    ("files", "running"),
    [
        ({driver.FABRIC_PIDS[0]: "4120\n", "/proc/4120/comm": "nv-fabricmanage\n"}, True),
        ({driver.FABRIC_PIDS[1]: "4120\n", "/proc/4120/comm": "nv-fabricmanage\n"}, True),
        ({driver.FABRIC_PIDS[0]: "4120\n", "/proc/4120/comm": "bash\n"}, False),
        ({driver.FABRIC_PIDS[0]: "4120\n"}, False),
        ({driver.FABRIC_PIDS[0]: "../x\n"}, False),
        ({"/.dockerenv": ""}, None),
    ],
)
def test_fabric_manager(tmp_path: Path, files: dict[str, Content], running: bool | None) -> None:
    assert read(tmp_path, files).fabric_manager_running is running


def test_this_machine() -> None:
    from gpucheck.host import LiveHost

    parts = driver.read(LiveHost())
    assert parts.driver is not None
    assert parts.driver.kernel_release
