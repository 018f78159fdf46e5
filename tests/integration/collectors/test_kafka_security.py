"""TLS and SASL against a real broker with a listener of its own for them."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from pydantic import SecretStr, ValidationError

from adaptive.contracts import TOPIC_TRACE_RECORDED as TOPIC
from adaptive.kafka_settings import KafkaSettings
from collectors.kafka.address import KafkaAddress
from collectors.kafka.topics import KafkaTopicAdmin
from collectors.open import open_transport
from collectors.topics import topic_specs
from collectors.transport import TransportError
from deploy.kafka.broker import Broker, free_port
from tests.kafka_broker import QUICK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1; its key lies beside it in one file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("tls")
    pem = signed.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "broker.pem").write_bytes(secret + pem)
    (directory / "ca.pem").write_bytes(pem)
    return directory


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[dict[str, str]]:
    """URLs of a broker that takes clients by TLS: at one port with SASL, at another with a certificate."""
    sasl, mutual = free_port(), free_port()
    listeners = f"SECURE://127.0.0.1:{sasl},MUTUAL://127.0.0.1:{mutual}"
    modules = "org.apache.kafka.common.security"
    keystores = {
        f"listener.name.{name}.ssl.{store}.{what}": value
        for name in ("secure", "mutual")
        for store, file in (("keystore", "broker.pem"), ("truststore", "ca.pem"))
        for what, value in (("type", "PEM"), ("location", str(certificate / file)))
    }
    broker = Broker(
        tmp_path_factory.mktemp("secure-kafka"),
        properties={
            **QUICK,
            **keystores,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL"
            ),
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": (
                f'{modules}.plain.PlainLoginModule required user_agent="{PASSWORD}";'
            ),
            **{
                f"listener.name.secure.{mechanism}.sasl.jaas.config": (
                    f"{modules}.scram.ScramLoginModule required;"
                )
                for mechanism in ("scram-sha-256", "scram-sha-512")
            },
        },
        java_options=("-XX:TieredStopAtLevel=1",),
        outlives=False,
    )
    broker.start()
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        upsertion = UserScramCredentialUpsertion("agent", mechanism, PASSWORD)
        assert admin.alter_user_scram_credentials([upsertion]) == {"agent": None}
    admin.close()
    with KafkaTopicAdmin(KafkaAddress.parse(f"kafka://{broker.address}"), KafkaSettings()) as topics:
        topics.create(topic_specs())
    yield {"sasl": f"kafka://127.0.0.1:{sasl}", "mutual": f"kafka://127.0.0.1:{mutual}"}
    broker.kill()


@pytest.fixture
def secure_url(secure: dict[str, str]) -> str:
    """The port with SASL."""
    return secure["sasl"]


def settings(certificate: Path, password: str = PASSWORD, mechanism: str = "PLAIN") -> KafkaSettings:
    """Settings of the client."""
    return KafkaSettings(
        kafka_security_protocol="SASL_SSL",
        kafka_ca_file=certificate / "ca.pem",
        kafka_sasl_mechanism=mechanism,
        kafka_username="agent",
        kafka_password=SecretStr(password),
        kafka_timeout_seconds=5,
    )


def passes_on(url: str, chosen: KafkaSettings, value: bytes) -> bool:
    """Whether a record that is sent comes back to a new group, which sees earlier tests' records too."""
    transport = open_transport(url, kafka=chosen)
    transport.send(TOPIC, "a", value)
    consumer = transport.consumer([TOPIC], f"group-{value.hex()}")
    found: list[bytes | None] = []
    for _ in range(50):
        found += [record.value for record in consumer.poll(0.2)]
        if value in found:
            break
    transport.close()
    return value in found


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_log_behind_tls_and_sasl_works(secure_url: str, certificate: Path, mechanism: str) -> None:
    """Topics are described, a record is sent and read by a group, all over the secure listener."""
    chosen = settings(certificate, mechanism=mechanism)
    with KafkaTopicAdmin(KafkaAddress.parse(secure_url), chosen) as admin:
        assert all(state.partitions for state in admin.describe(topic_specs()))
    assert passes_on(secure_url, chosen, mechanism.encode())


def test_a_log_that_wants_a_client_certificate_works(secure: dict[str, str], certificate: Path) -> None:
    """With certificate and key the broker lets a client in; without it is refused."""
    chosen = KafkaSettings(
        kafka_security_protocol="SSL",
        kafka_ca_file=certificate / "ca.pem",
        kafka_certificate_file=certificate / "ca.pem",
        kafka_key_file=certificate / "broker.pem",
        kafka_timeout_seconds=5,
    )
    assert passes_on(secure["mutual"], chosen, b"mutual")
    nobody = chosen.model_copy(update={"kafka_certificate_file": None, "kafka_key_file": None})
    transport = open_transport(secure["mutual"], kafka=nobody)
    with pytest.raises(TransportError):
        transport.send(TOPIC, "a", b"nobody")
    transport.close()


def test_the_environment_is_enough(
    secure_url: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine process is given a URL only; the rest comes by ADAPTIVE_KAFKA_*."""
    for field, value in settings(certificate).model_dump(exclude_unset=True).items():
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        monkeypatch.setenv(f"ADAPTIVE_{field}".upper(), text)
    transport = open_transport(secure_url)
    transport.send(TOPIC, "a", b"2")
    transport.close()


@pytest.mark.parametrize("fault", ["password", "scram password", "authority"])
def test_a_wrong_password_or_certificate_is_refused(secure_url: str, certificate: Path, fault: str) -> None:
    """Nothing is sent, and the password is in no message."""
    wrong = "wrong" if "password" in fault else PASSWORD
    chosen = settings(certificate, wrong, "SCRAM-SHA-512" if "scram" in fault else "PLAIN")
    if fault == "authority":
        chosen = chosen.model_copy(update={"kafka_ca_file": None})
    transport = open_transport(secure_url, kafka=chosen)
    with pytest.raises(TransportError) as caught:
        transport.send(TOPIC, "a", b"3")
    assert "wrong" not in str(caught.value)
    assert PASSWORD not in str(caught.value)
    transport.close()


def test_incomplete_settings_are_refused() -> None:
    """The error names the settings that are missing; secrets are not shown."""
    with pytest.raises(ValidationError, match="ADAPTIVE_KAFKA_USERNAME and ADAPTIVE_KAFKA_PASSWORD"):
        KafkaSettings(kafka_security_protocol="SASL_SSL")
    with pytest.raises(ValidationError, match="kafka_certificate_file and kafka_key_file"):
        KafkaSettings(kafka_key_file="key.pem")
    assert "hunter2" not in repr(KafkaSettings(kafka_password=SecretStr("hunter2")))
