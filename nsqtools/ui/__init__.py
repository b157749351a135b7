"""The cluster in a browser: an ASGI application on Starlette, with pages made by Jinja."""
