"""The few calls of the Kubeflow Pipelines API (v2beta1) that a submitter needs: one request, one answer or one error."""

from __future__ import annotations

import contextlib
import json
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from eval_core.errors import UsageError
from pipelines.bearer import TokenSource
from pipelines.errors import ApiError, TransientError

try:
    import requests
except ImportError as missing:
    raise UsageError("submitting needs requests: pip install 'concord-eval[submit]'") from missing

_ROOT = "/apis/v2beta1"
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 60
_PAGE = 100


@dataclass(frozen=True, kw_only=True)
class Predicate:
    """A condition on the objects of a list: `key operation value`."""

    key: str
    operation: str
    value: str


class Api:
    """Kubeflow Pipelines at one address."""

    def __init__(self, host: str, token: TokenSource, ca: Path | None) -> None:
        """Prepare calls to `host`; nothing is sent yet.

        Raises:
            UsageError: `host` is no address, or `ca` no file.
        """
        self.host = host.rstrip("/")
        parts = urlsplit(self.host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"--host {host}: not an address; needed is something like https://kubeflow.example.com/pipeline"
            )
        if ca is not None and not ca.is_file():
            raise UsageError(f"--ca {ca}: no such file")
        self._token = token
        self._verify: str | bool = str(ca) if ca else True
        self._session = requests.Session()

    def run_url(self, run_id: str) -> str:
        """The run's page, for people."""
        return f"{self.host}/#/runs/details/{run_id}"

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        """Read what lies at `path`, such as `/runs/ID`."""
        return self._call("GET", path, query, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create `body` at `path`. After a TransientError nobody knows whether it was created."""
        return self._call("POST", path, {}, body)

    def list(self, path: str, items: str, predicate: Predicate, **query: str) -> list[dict[str, Any]]:
        """All objects at `path` for which `predicate` holds; `items` is the list's name in the answer."""
        found: list[dict[str, Any]] = []
        condition = {"key": predicate.key, "operation": predicate.operation, "string_value": predicate.value}
        # The server decodes the filter once more than it decodes the query.
        query["filter"] = quote(json.dumps({"predicates": [condition]}))
        token = ""
        while True:
            page = self.get(path, page_size=_PAGE, page_token=token, **query)
            found += page.get(items, [])
            token = page.get("next_page_token", "")
            if not token:
                return found

    def _call(self, method: str, path: str, query: dict[str, Any], body: dict[str, Any] | None) -> dict[str, Any]:
        """One request.

        Raises:
            TransientError: no answer, 429 or 5xx.
            ApiError: not the API, not its certificate, or not for us.
            UsageError: the API finds fault with what was asked.
        """
        url = f"{self.host}{_ROOT}{path}"
        try:
            response = self._session.request(
                method,
                url,
                params=query,
                json=body,
                auth=_Bearer(self._token()),
                # Both on every call: requests lets REQUESTS_CA_BUNDLE win over a session's, and follows to login pages.
                verify=self._verify,
                allow_redirects=False,
                timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS),
            )
        except requests.exceptions.SSLError as error:
            raise self._ssl_error(error) from error
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout) as error:
            raise TransientError(f"{self.host} doesn't answer ({_reason(error)})") from error
        except requests.exceptions.ChunkedEncodingError as error:
            raise TransientError(f"{self.host} broke off its answer") from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise UsageError(f"{self.host}: can't be asked: {error}") from error
        return self._read(response)

    def _read(self, response: requests.Response) -> dict[str, Any]:
        status = f"{response.status_code} {response.reason}"
        if response.status_code in (401, 403):
            who = "with the token that was given" if self._token() else "without a token"
            raise ApiError(
                f"{self.host} refuses access {who} ({status}{_said(response)}); give a token with --token-file, "
                "KF_PIPELINES_TOKEN or KF_PIPELINES_SA_TOKEN_PATH, and in a multi-user installation --namespace"
            )
        if response.is_redirect:
            raise ApiError(
                f"{self.host} sends us on to {response.headers['Location']} ({status}), a login page perhaps; give a token "
                "that it accepts, or the address behind the login"
            )
        if response.status_code == 429 or response.status_code >= 500:
            raise TransientError(f"{self.host} answers {status}{_said(response)}", _retry_after(response))
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            kind = response.headers.get("Content-Type", "nothing").partition(";")[0]
            raise ApiError(
                f"{response.url.partition('?')[0]} answers {status} with {kind}, not as the API does; "
                "is --host the address of Kubeflow Pipelines?"
            )
        if not response.ok:
            raise UsageError(f"{self.host} answers {status}{_said(response)}")
        return answer

    def _ssl_error(self, error: Exception) -> ApiError:
        if "EOF occurred" in str(error):
            return TransientError(f"{self.host} broke off the handshake")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return ApiError(
                f"{self.host}: its certificate isn't trusted ({_reason(error)}); give its authority with --ca FILE"
            )
        return ApiError(f"{self.host}: no secure connection ({_reason(error)})")


class _Bearer(requests.auth.AuthBase):  # type: ignore[misc]
    """The token's header. As an `auth`, because without one requests would send what a .netrc says instead."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token is not None:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def _said(response: requests.Response) -> str:
    """What the API said about its refusal, where it said something."""
    with contextlib.suppress(ValueError, AttributeError):
        said = response.json()
        if text := (said.get("message") or said.get("error")):
            return f": {str(text).splitlines()[0][:300]}"
    return ""


def _retry_after(response: requests.Response) -> float:
    """Seconds from the header, which holds seconds or a date."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


def _reason(error: BaseException) -> str:
    """The words of the innermost error, which says what happened."""
    inner: BaseException = error
    while (deeper := inner.__cause__ or inner.__context__ or _argument(inner)) is not None:
        inner = deeper
    if isinstance(inner, ssl.SSLCertVerificationError):
        return inner.verify_message
    return getattr(inner, "strerror", None) or str(inner).partition("\n")[0] or type(inner).__name__


def _argument(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return reason
    return next((a for a in error.args if isinstance(a, BaseException)), None)
