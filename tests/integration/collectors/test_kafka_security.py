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
def secure_url(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[str]:
    """A broker that takes clients by TLS and SASL PLAIN only, on one of its two ports."""
    port = free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker = Broker(
        tmp_path_factory.mktemp("secure-kafka"),
        properties={
            **QUICK,
            "listeners": f"SECURE://127.0.0.1:{port}",
            "advertised.listeners": f"SECURE://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{module} required user_agent="{PASSWORD}";',
            "listener.name.secure.ssl.keystore.type": "PEM",
            "listener.name.secure.ssl.keystore.location": str(certificate / "broker.pem"),
        },
        java_options=("-XX:TieredStopAtLevel=1",),
        outlives=False,
    )
    broker.start()
    yield f"kafka://127.0.0.1:{port}"
    broker.kill()


def settings(certificate: Path, password: str = PASSWORD) -> KafkaSettings:
    """Settings of the client."""
    return KafkaSettings(
        kafka_security_protocol="SASL_SSL",
        kafka_ca_file=certificate / "ca.pem",
        kafka_sasl_mechanism="PLAIN",
        kafka_username="agent",
        kafka_password=SecretStr(password),
        kafka_timeout_seconds=5,
    )


def test_a_log_behind_tls_and_sasl_works(secure_url: str, certificate: Path) -> None:
    """Topics are made, a record is sent and read by a group, all over the secure listener."""
    chosen = settings(certificate)
    with KafkaTopicAdmin(KafkaAddress.parse(secure_url), chosen) as admin:
        admin.create(topic_specs())
    transport = open_transport(secure_url, kafka=chosen)
    transport.send(TOPIC, "a", b"1")
    consumer = transport.consumer([TOPIC], "group")
    found = []
    for _ in range(50):
        found += consumer.poll(0.2)
        if found:
            break
    assert [record.value for record in found] == [b"1"]
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


@pytest.mark.parametrize("fault", ["password", "authority"])
def test_a_wrong_password_or_certificate_is_refused(secure_url: str, certificate: Path, fault: str) -> None:
    """Nothing is sent, and the password is in no message."""
    chosen = settings(certificate, "wrong") if fault == "password" else settings(certificate)
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
