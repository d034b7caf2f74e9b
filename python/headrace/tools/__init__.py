# SPDX-License-Identifier: Apache-2.0
"""What comes with the server: the demo."""
