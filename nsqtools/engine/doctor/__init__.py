"""Why a consumer sees nothing: facts are gathered, then judged by functions that ask nobody."""
