#!/bin/sh
# Publishes to a topic, consumes it in two groups, nacks, gives up and redrives: with curl alone.
#
#   rowmq migrate --url sqlite:///shop.db && rowmq dashboard --url sqlite:///shop.db &
#   ./consume.sh                   # ROWMQ_API says where it is served, ROWMQ_TOKEN who asks: an admin
set -eu

trap 'exit 1' TERM # which a call that failed sends, since most are made in shells of their own

api=${ROWMQ_API:-http://localhost:8080/api/v1}
topic=${1:-orders}

# call METHOD PATH [JSON]: prints what is answered. A problem is told as the API tells it, and ends
# the script.
# A connection that breaks is tried again: publishing by id and settling can be repeated.
call() {
    if answer=$(curl --silent --fail-with-body --retry 3 --request "$1" "$api$2" \
        ${ROWMQ_TOKEN:+--header "Authorization: Bearer $ROWMQ_TOKEN"} \
        ${3:+--header "Content-Type: application/json" --data "$3"}); then
        printf '%s\n' "$answer"
    else
        detail=$(printf '%s\n' "$answer" | member detail)
        echo "$1 $api$2 failed: ${detail:-${answer:-no server answers there}}" >&2
        kill $$
    fi
}

# member NAME: a member of the JSON that comes in, if it is a string or a number. It is the first of
# that name: what a message says of itself stands before its headers and its payload, in which there
# may be members of any name. In a string its quotes would have backslashes before them.
member() {
    grep -oE '"'"$1"'":("([^"\]|\\.)*"|[^",}]*)' | head -n 1 | sed 's/^"[^"]*"://; s/^"//; s/"$//'
}

publish() {
    call POST "/topics/$topic/messages" "{\"id\": \"$1\", \"key\": \"ann\", \"payload\": {\"total\": $2}}"
}

# poll GROUP: the next message as JSON, with a receipt to settle it by; nothing if there is none.
poll() {
    call POST "/topics/$topic/groups/$1/poll" \
        '{"max": 1, "timeout_seconds": 1, "max_attempts": 2, "visibility_seconds": 60}' |
        grep '"receipt"' || true
}

# settle GROUP HOW DELIVERY [MORE]: ack, nack or reject.
settle() {
    receipt=$(printf '%s\n' "$3" | member receipt)
    call POST "/topics/$topic/groups/$1/$2" "{\"receipts\": [\"$receipt\"]${4:+, $4}}" > /dev/null
}

lag() {
    call GET "/topics/$topic/groups/$1/lag" | grep -o '"lag":[0-9]*' | awk -F: '{ n += $2 } END { print n + 0 }'
}

call PUT "/topics/$topic/groups/billing" '{"start": "earliest"}' > /dev/null
call PUT "/topics/$topic/groups/search" '{"start": "earliest"}' > /dev/null

publish order-1 9.50 > /dev/null
publish order-2 -1 > /dev/null
publish order-3 12 > /dev/null
echo "published again: duplicate $(publish order-1 9.50 | member duplicate)"

# The group that bills: order 2 is tried twice, and then given up; order 3 is given up at once.
while delivery=$(poll billing) && [ -n "$delivery" ]; do
    id=$(printf '%s\n' "$delivery" | member id)
    attempt=$(printf '%s\n' "$delivery" | member attempt)
    case $id in
        order-1) settle billing ack "$delivery"; echo "billed $id" ;;
        order-2)
            settle billing nack "$delivery" '"delay_seconds": 0, "error": "a negative total"'
            echo "could not bill $id, attempt $attempt"
            ;;
        *) settle billing reject "$delivery" '"error": "no address"'; echo "gave up $id" ;;
    esac
done

# The group that searches gets everything once, whatever the other one made of it.
while delivery=$(poll search) && [ -n "$delivery" ]; do
    settle search ack "$delivery"
    echo "indexed $(printf '%s\n' "$delivery" | member id)"
done

errors=$(call GET "/topics/$topic/letters?group=billing" |
    grep -oE '"group":"billing","error":"([^"\]|\\.)*"' | sed 's/^[^,]*,//' | sort | tr '\n' ' ')
echo "dead letters: $errors"
call POST "/topics/$topic/redrive" '{"group": "billing", "all": true}' > /dev/null

while delivery=$(poll billing) && [ -n "$delivery" ]; do
    settle billing ack "$delivery"
    echo "billed $(printf '%s\n' "$delivery" | member id) after all, attempt $(printf '%s\n' "$delivery" | member attempt)"
done
echo "left to do: billing $(lag billing), search $(lag search)"
