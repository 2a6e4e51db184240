"""The reporter that runs beside the containers of a GPU pod."""
