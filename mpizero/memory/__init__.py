"""What a device holds.

The kinds of memory (`kinds`, pure), and a ledger of every buffer, exact to the byte (`ledger`).
"""
