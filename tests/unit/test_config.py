from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from apportion import config, settings
from apportion.config import Config
from apportion.errors import ConfigError
from apportion.model import CoresMode, GpuUuid


def _parse(*argv: str, environ: dict[str, str] | None = None) -> Config:
    parser = argparse.ArgumentParser()
    config.add_flags(parser)
    return config.load(vars(parser.parse_args(argv)), environ or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yaml"


def test_the_table_has_each_field_once_and_in_order() -> None:
    assert [setting.name for setting in settings.SETTINGS] == [
        field.name for field in dataclasses.fields(Config) if field.name != "ignored"
    ]


def test_each_default_passes_its_own_check() -> None:
    for setting in settings.SETTINGS:
        assert setting.check(getattr(Config(), setting.name)), setting.name


def test_each_check_says_what_it_expects() -> None:
    default = dataclasses.fields(settings.Setting)[2].default
    for setting in settings.SETTINGS:
        assert setting.help
        assert (setting.check is default) == (setting.expect == ""), setting.name


def test_nothing_given_gives_the_defaults() -> None:
    assert _parse() == Config()


def test_file_then_environment_then_flags(file: Path) -> None:
    file.write_text("log_level: ERROR\ncores_min: 0\nnode_name: from-file\n")
    environ = {
        "APPORTION_CONFIG": str(file),
        "APPORTION_NODE_NAME": "from-env",
        "APPORTION_CORES_MIN": "5",
        "OTHER": "x",
    }
    found = _parse("--node-name", "from-flag", environ=environ)
    assert (found.log_level, found.cores_min, found.node_name) == ("ERROR", 5, "from-flag")


def test_the_flag_for_the_file_goes_over_the_environments(file: Path, tmp_path: Path) -> None:
    file.write_text("log_format: json\n")
    environ = {"APPORTION_CONFIG": str(tmp_path / "missing.yaml")}
    assert _parse("--config", str(file), environ=environ).log_format == "json"


def test_without_an_environment_the_processs_own_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_NODE_NAME", "n-1")
    assert config.load({}).node_name == "n-1"


def _links(service: str) -> dict[str, str]:
    """Return what kubelet sets for a Service (FromServices in pkg/kubelet/envvars)."""
    prefix = service.upper().replace("-", "_")
    found = {
        f"{prefix}_SERVICE_HOST": "10.0.0.1",
        f"{prefix}_SERVICE_PORT": "9400",
        f"{prefix}_SERVICE_PORT_HTTP": "9400",
        f"{prefix}_PORT": "tcp://10.0.0.1:9400",
    }
    for port, protocol in ((9400, "tcp"), (53, "udp")):
        one = f"{prefix}_PORT_{port}_{protocol.upper()}"
        found[one] = f"{protocol}://10.0.0.1:{port}"
        found |= {f"{one}_PROTO": protocol, f"{one}_PORT": str(port), f"{one}_ADDR": "10.0.0.1"}
    return found


@pytest.mark.parametrize("service", ["apportion", "apportion-metrics", "apportion-port-1-tcp"])
def test_variables_of_a_service_with_our_name_are_no_settings_and_named(service: str) -> None:
    environ = _links(service)
    found = _parse(environ=environ | {"APPORTION_CORES_MIN": "5"})
    assert found == Config(cores_min=5, ignored=tuple(sorted(environ)))


@pytest.mark.parametrize(
    "name",
    [
        "APPORTION_METRICS_PORT",
        "APPORTION_HEALTH_PORT",
        "APPORTION_PORT",
        "APPORTION_SERVICE_PORT",
        "APPORTION_SERVICE_HOST",
        "APPORTION_PORT_9400_TCP",
        "APPORTION_METRICS_SERVICE_PORT_HTTP",
    ],
)
@pytest.mark.parametrize("beside", [{}, _links("apportion-other")], ids=["alone", "beside"])
def test_a_variable_that_only_looks_like_a_services_is_refused(
    name: str, beside: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting '{name}'"):
        _parse(environ=beside | {name: "9400"})


def test_a_port_of_ones_own_in_the_place_of_a_services_is_refused() -> None:
    environ = _links("apportion-metrics") | {"APPORTION_METRICS_PORT": "9400"}
    with pytest.raises(ConfigError, match="unknown setting 'APPORTION_METRICS_PORT'"):
        _parse(environ=environ)


def test_no_setting_is_taken_for_a_services_variable() -> None:
    for setting in settings.SETTINGS:
        link = rf"(.*_)?({config._SERVICE_LINK.pattern})"
        assert not re.fullmatch(link, setting.name.upper())


@pytest.mark.parametrize(
    "name", ["APPORTION_CORE_MIN", "APPORTION_", "APPORTION_SERVICE", "APPORTION_node_name"]
)
def test_an_unknown_variable_is_refused_as_typed_with_the_known_names(name: str) -> None:
    words = rf"unknown setting '{name}' \(environment\); .*known: .*APPORTION_NODE_NAME"
    with pytest.raises(ConfigError, match=words):
        _parse(environ={name: "1"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("APPORTION_SCAN_INTERVALL_S", "APPORTION_SCAN_INTERVAL_S"),
        ("APPORTION_METRIC_ADDRESS", "APPORTION_METRICS_ADDRESS"),
    ],
)
def test_an_unknown_variable_is_told_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}' \(environment\); did you mean {nearest}\?"):
        _parse(environ={name: "1"})


@pytest.mark.parametrize(
    "name", ["driver-name", "APPORTION_DRIVER_NAME", "Driver_Name", "drivername"]
)
def test_an_unknown_key_of_the_file_is_told_the_nearest(file: Path, name: str) -> None:
    file.write_text(f"{name}: x.y\n")
    with pytest.raises(ConfigError, match=rf"'{name}' \({file}\); did you mean driver_name\?"):
        _parse("--config", str(file))


def test_nothing_near_is_not_guessed() -> None:
    with pytest.raises(ConfigError, match=r"'APPORTION_ZZZ' \(environment\); known: "):
        _parse(environ={"APPORTION_ZZZ": "1"})


def test_health_and_metrics_need_addresses_of_their_own() -> None:
    with pytest.raises(
        ConfigError, match=r"health_address and metrics_address are both '0\.0\.0\.0"
    ):
        _parse("--metrics-address", Config().health_address)
    assert _parse("--health-address", "", "--metrics-address", "").metrics_address == ""


def test_each_address_has_an_example_of_its_own() -> None:
    examples = {
        setting.name: re.findall(r"[0-9.]+:[0-9]+", setting.expect)
        for setting in settings.SETTINGS
        if setting.name.endswith("_address")
    }
    assert examples == {"health_address": ["0.0.0.0:51515"], "metrics_address": ["0.0.0.0:9400"]}


@pytest.mark.parametrize("name", ["api_timeout_s", "scan_interval_s", "sweep_interval_s"])
def test_seconds_have_no_unit_and_the_refusal_says_so(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} .* is '5s'; expected 1 to .* whole seconds, wi"):
        _parse(f"--{name.replace('_', '-')}", "5s")


def test_an_unknown_key_of_the_file_is_refused(file: Path) -> None:
    file.write_text("driver: x\n")
    with pytest.raises(ConfigError, match=f"unknown setting 'driver' \\({file}\\)"):
        _parse("--config", str(file))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("- a\n", "must hold settings by name"),
        ("text", "must hold settings by name"),
        ("a: [", "is not YAML"),
        ("log_level: INFO\nlog_level: ERROR\n", "'log_level' is given twice"),
        ("? [a]\n: b\n", "is not YAML"),
        ("yes: 1\n", "unknown setting 'True'"),
        ("cores_min: true\n", "cores_min .* is True; expected 0 to 100"),
        ("cores_min: 1.5\n", r"is 1\.5; expected"),
        ("cores_min: [1]\n", "expected 0 to 100"),
        ("self_test: on\n", "expected on or off, in quotes"),
        ("node_name:\n", "is None; expected a DNS subdomain"),
        ("cdi_dir: {}\n", "expected an absolute path"),
    ],
)
def test_a_file_that_is_not_settings_is_refused(file: Path, content: str, words: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=words):
        _parse("--config", str(file))


def test_a_file_of_nothing_is_no_settings(file: Path) -> None:
    file.write_text("# nothing\n")
    assert _parse("--config", str(file)) == Config()


def test_a_file_in_another_encoding_is_refused(file: Path) -> None:
    file.write_bytes(b"node_name: \xff\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        _parse("--config", str(file))


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read settings from {file}: No such file"):
        _parse("--config", str(file))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("driver_name", "Upper.case"),
        ("driver_name", ""),
        ("node_name", "node/0"),
        ("pod_uid", "../x"),
        ("cdi_dir", "var/run/cdi"),
        ("cdi_dir", ""),
        ("device_naming", "uuid"),
        ("device_prefix", "GPU-"),
        ("memory_capacity", "most"),
        ("cores_min", "-1"),
        ("cores_min", "101"),
        ("cores_min", "1_0"),
        ("cores_min", "٣"),
        ("cores_min", " 5"),
        ("api_timeout_s", "0"),
        ("scan_interval_s", "3601"),
        ("sweep_interval_s", "x"),
        ("self_test", "yes"),
        ("log_level", "info"),
        ("log_format", "xml"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_source(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"setting {name} \(command line\) is .*; expected "):
        _parse(f"--{name.replace('_', '-')}={value}")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cdi_dir", "/etc/cdi", Path("/etc/cdi")),
        ("cores_min", "0", 0),
        ("node_name", "12", "12"),
        ("device_prefix", "hami-gpu-", "hami-gpu-"),
        ("pod_uid", "", ""),
    ],
)
def test_values_have_the_type_of_their_default(name: str, text: str, value: Any) -> None:
    assert getattr(_parse(f"--{name.replace('_', '-')}", text), name) == value


@pytest.mark.parametrize("written", ["node_name: 0777", "node_name: 12", "cdi_dir: 7", "proc: 1.5"])
def test_text_that_yaml_takes_for_a_number_wants_quotes(file: Path, written: str) -> None:
    file.write_text(written)
    with pytest.raises(ConfigError, match=r"expected .*, in quotes$"):
        _parse("--config", str(file))
    file.write_text("node_name: '0777'\n")
    assert _parse("--config", str(file)).node_name == "0777"


@pytest.mark.parametrize("name", ["cdi_dir", "kubeconfig", "node_name"])
def test_a_text_holds_no_nul(file: Path, name: str) -> None:
    file.write_text(f'{name}: "/a\\0b"\n')
    with pytest.raises(ConfigError, match=f"setting {name} "):
        _parse("--config", str(file))


def test_our_folder_is_below_kubelets() -> None:
    found = Config(plugins_dir=Path("/p"), driver_name="d.x")
    assert found.plugin_dir == Path("/p/d.x")


def test_help_names_each_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parse("--help")
    text = capsys.readouterr().out
    for setting in settings.SETTINGS:
        assert "--" + setting.name.replace("_", "-") in text
    assert "(default: /var/run/cdi)" in " ".join(text.split())


def test_a_gpu_has_the_period_of_its_own_line_or_that_of_all() -> None:
    one, other = (f"GPU-0a1b2c3d-0000-4000-8000-00000000000{n}" for n in (1, 2))
    found = config.load({"cores_periods": f"{one}=20, {other}=100"}, {})
    assert found.period_ns(one) == 20_000_000
    assert found.period_ns(other) == 100_000_000
    assert found.period_ns("GPU-none") == 50_000_000
    assert config.load({"cores_period_ms": "30"}, {}).period_ns(one) == 30_000_000


@pytest.mark.parametrize(
    "value",
    [
        "20",
        "GPU-1=20",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=9",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=1001",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=20ms",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=20,",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=20,GPU-0a1b2c3d-0000-4000-8000-000000000001=30",
        "Tesla T4=20",
    ],
)
def test_periods_are_by_uuid_and_within_bounds(value: str) -> None:
    with pytest.raises(ConfigError, match=r"cores_periods .*such as GPU-"):
        config.load({"cores_periods": value}, {})


def test_a_gpu_has_the_mode_of_its_own_line_or_that_of_all() -> None:
    one, other, third = (GpuUuid(f"GPU-0a1b2c3d-0000-4000-8000-00000000000{n}") for n in (1, 2, 3))
    found = config.load({"cores_modes": f"{one}=mps, {other}=none"}, {})
    assert [found.mode_of(each) for each in (one, other, third)] == [
        CoresMode.MPS,
        CoresMode.NONE,
        CoresMode.TIMESLICE,
    ]
    assert config.load({"cores_mode": "mps"}, {}).mode_of(one) is CoresMode.MPS


@pytest.mark.parametrize(
    "value",
    [
        "mps",
        "GPU-1=mps",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=MPS",
        "GPU-0a1b2c3d-0000-4000-8000-000000000001=mps,GPU-0a1b2c3d-0000-4000-8000-000000000001=none",
    ],
)
def test_modes_are_by_uuid_and_of_those_there_are(value: str) -> None:
    with pytest.raises(ConfigError, match=r"cores_modes .*such as GPU-"):
        config.load({"cores_modes": value}, {})
