# A second target on a file that is served already is refused.
. "$(dirname "$0")/lib.sh"
need jq

target m0
refused "m0.img.*(use|lock)" "$NETRAID" target --listen 127.0.0.1:0 --lun "file:$WORK/m0.img"
stop m0
