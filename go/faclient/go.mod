module faclient

go 1.19
