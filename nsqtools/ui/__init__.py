"""The cluster in a browser: an ASGI application on Starlette, with pages made by Jinja.

One watch polls the servers for all browsers. Pages are made from its last picture; a browser gets
each new picture by server-sent events. The script and the style sheet are the only files served.
"""
