"""An HTTP process in front of Soloist servers, for clients of the OpenAI API and for browsers.

It knows the client library and nothing behind it: no torch, no engine, no server. Any number of them may run; none
keeps anything that another one lacks.
"""
