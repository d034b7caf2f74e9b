# SPDX-License-Identifier: Apache-2.0
"""The server: transports, the services around Predict, and the `serve` command."""
