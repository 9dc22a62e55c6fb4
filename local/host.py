"""The Python half of the local host: calls `entry.Default` as workerd's own host does."""

import sys
from inspect import isawaitable


def load():
    """Import the application and return `invoke`, the one function that JavaScript calls.

    The paths stand in the order of a deployed Worker: its sources before everything,
    vendored packages after the standard library.
    """
    sys.path.insert(0, "/src")
    site_packages = next(i for i, path in enumerate(sys.path) if "site-packages" in path)
    sys.path.insert(site_packages, "/python_modules")

    from workers import import_from_javascript, python_from_rpc, python_to_rpc

    from entry import Default

    runtime = import_from_javascript("cloudflare:workers")

    async def invoke(ctx, env, method, *args):
        """One entrypoint object per event. Only JavaScript values leave: no proxy stays.

        The module's `env` is this event's until the first await, when another may begin.
        """
        runtime.env = env
        result = getattr(Default(ctx, env), method)(*map(python_from_rpc, args))
        return python_to_rpc(await result if isawaitable(result) else result)

    return invoke
