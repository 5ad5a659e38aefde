"""What people do, in classes of words that mean nearly the same, or belong together.

General English and the English of computers, written from knowledge of the language. One class a
line; `_` joins the words of a phrase. A word may be in several classes.
"""

from __future__ import annotations

from typing import Final

VERBS: Final = """
create make add new build compose produce set_up establish
create open file raise submit log register report
create start begin launch initiate kick_off spin_up bring_up provision instantiate
create generate produce author craft
add append insert attach include put_in put_into enter put_on
add attach upload enclose
add assign give grant
insert add store save write record put
delete remove erase destroy drop discard purge wipe trash get_rid_of throw_away throw_out dispose
delete clear clean_up empty flush prune reset wipe
delete unlink detach deregister unregister uninstall
remove take_off take_out take_down pull_out strip kick evict kick_out
update edit modify change alter revise amend adjust tweak
update refresh renew sync bring_up_to_date
update set overwrite replace patch put
update upgrade bump
change switch swap replace exchange
rename retitle relabel call_it name
move transfer relocate shift migrate drag put
copy duplicate clone replicate mirror
get fetch retrieve obtain read return pull grab load
get show view see display look_at check inspect
get describe detail lookup look_up info
list enumerate show browse view see all index
list get which what_are overview
search find look_for look_up lookup query seek locate hunt discover
search browse explore scan dig
find discover detect spot identify
query ask select question run_query
read view open show load look_at see
read parse
write save store put record
write draft compose author type jot_down note_down put_down write_down
save store keep persist preserve bookmark remember
save export download
download fetch pull get grab save
upload push put import send publish
import ingest load bring_in
export dump extract save_as output
send deliver dispatch transmit mail forward
send post publish share
send message text write_to ping drop_a_line shoot tell notify let_know contact reach_out
reply respond answer get_back write_back react
forward pass_on redirect relay
post publish tweet share announce put_up
publish release ship go_live make_public roll_out
notify alert inform tell warn let_know announce remind
remind nudge alert
call phone dial ring
invite ask_to_join bring_on add
join enter subscribe become_member
leave quit exit
subscribe follow watch sign_up
unsubscribe unfollow opt_out mute
follow watch track monitor
track monitor watch observe keep_an_eye keep_track
close end finish complete resolve shut
close shut_down terminate quit
complete finish done mark_done tick_off check_off resolve wrap_up
resolve fix solve settle
reopen open restore
open launch start show
open navigate go_to visit browse load
start run launch begin boot turn_on switch_on power_on resume spin_up
stop halt end terminate kill abort cancel shut_down turn_off switch_off power_off pause
cancel abort stop call_off revoke withdraw undo
pause suspend hold freeze stop
resume continue unpause carry_on pick_up proceed
restart reboot reload reset recycle bounce
retry redo rerun try_again repeat
run execute invoke start perform trigger call launch
run execute evaluate eval
trigger fire kick_off start
schedule plan book arrange set_up
schedule reschedule postpone delay move push_back
book reserve order
merge combine join unite fold land
merge integrate consolidate
split divide separate break_up chunk partition
compare diff difference contrast
compare match similar
check verify validate test confirm inspect examine see
check look_at status
validate lint verify check
test try verify check run
analysis examine investigate study assess evaluate inspect review look_into
analysis understand explanation break_down
review audit inspect assess look_over
approve accept confirm sign_off allow okay authorise
reject decline deny refuse dismiss turn_down
assign delegate allocate hand_over give
unassign remove
allow permit grant enable authorise let
deny block forbid ban disallow prohibit
block ban blacklist mute
unblock unban allow
enable activate turn_on switch_on
disable deactivate turn_off switch_off
lock protect secure freeze
unlock release
share give_access grant collaborate
revoke withdraw remove invalidate
log_in sign_in authenticate login logon
log_out sign_out logout
connect link attach hook_up join pair
disconnect unlink detach
link relate associate connect reference tie
install set_up add
uninstall remove
configure set_up setup set adjust customize
deploy release ship roll_out publish push launch promote
rollback revert undo roll_back restore go_back back_out
revert undo roll_back
restore recover bring_back undelete get_back revert
backup back_up snapshot archive save
archive store put_away shelve
commit save record check_in
push upload send publish
pull fetch get download sync
checkout switch check_out
clone copy download
fork copy branch
branch fork
tag label mark
tag categorize classify
mark flag set tag star
flag mark report
star favourite like bookmark
pin stick fix
rate score grade rank review
vote poll
rank order sort
sort order arrange rank
filter narrow restrict limit select
group aggregate cluster organise
count tally how_many number total
calculate compute work_out figure_out evaluate math
calculate sum add total
sum total add_up
measure time benchmark profile
estimate predict forecast guess project
predict forecast
convert transform change turn translate
convert encode decode
encode decode encrypt
encrypt cipher protect
decrypt decipher
hash digest checksum
compress zip shrink pack reduce
extract unzip unpack decompress
extract pull_out scrape parse get
scrape crawl extract harvest
crawl spider scrape map
parse read interpret
translate localize render
summary sum_up outline brief condense recap digest shorten tldr
explanation describe clarify tell_about
transcribe write_out caption subtitle
rewrite rephrase paraphrase
format beautify prettify tidy clean_up
render draw display produce
draw sketch paint plot illustrate create
plot chart graph draw visual
visual chart plot graph draw show
resize scale shrink enlarge crop
rotate turn flip
record capture film tape
capture take snap grab screenshot
screenshot capture snapshot snap take_a_picture take_a_screenshot
play listen start stream
play watch
skip next
listen hear
speak say read_aloud read_out voice
print output
scan read look_through
type enter fill key_in write input
fill fill_in fill_out complete enter populate
click press tap hit push select
press push hit type
hover mouse_over point
scroll swipe page
drag move drop
select choose pick
pick choose select
wait sleep pause delay
navigate go visit open browse
navigate go_back back
pay charge bill
pay settle buy purchase checkout
charge bill pay debit
refund reimburse pay_back give_back money_back return
buy purchase order acquire
sell trade
order buy request
return send_back refund
ship deliver send
transfer wire send
invoice bill charge
withdraw take_out
deposit pay_in
spend cost
subscribe sign_up
hire recruit
fire dismiss
sign execute
train teach fit fine_tune
teach learn train
learn study find_out
find_out look_up search learn get
think reason reflect
reason think
remember recall store memorize memory
remember retrieve
forget delete remove
ask question query prompt request
ask request
answer respond reply
suggest recommend propose advise
recommend suggest
help assist support
discuss talk chat comment
chat talk message
comment annotate remark note reply respond
comment leave_a_note add_a_note
debug troubleshoot diagnose investigate
diagnose troubleshoot
profile benchmark
optimize improve speed_up tune
improve enhance upgrade
refactor restructure rename
compile build make
build compile package construct
lint check
mock simulate fake
simulate emulate mock
scale resize grow
expose publish
attach mount
mount attach
host serve
route direct
intercept mock block
inject insert
replace substitute swap find_and_replace
undo revert
redo repeat
migrate move upgrade convert
seed populate fill
truncate empty cut shorten
shorten cut abbreviate
expand grow extend unfold
extend lengthen prolong
renew extend
expire end
rotate renew
reset clear restore
initialize init set_up start
register sign_up enroll create
verify confirm check prove
impersonate act_as
collect gather get
gather collect
receive get
submit send enter
request ask
process handle
handle deal_with process
escalate raise
triage prioritize sort
prioritize rank
attend go
host organise
celebrate party
travel go visit
drive travel
walk hike
fly travel
navigate direct
geocode locate coordinate
locate find where position
obtain get retrieve fetch acquire receive
retrieve obtain look_up find
determine find get check identify
enumerate list show
ascertain check determine
reveal show get display
inspect examine look_at get view
examine inspect analysis check
fetch retrieve get pull load
compile gather collect assemble generate
assemble build collect
modify update edit change alter amend
amend update edit
alter change update modify
adjust update change configure
append add insert
erase delete remove wipe
eliminate delete remove
purge delete clear
terminate stop kill end close
halt stop pause
invoke call run execute
initiate start begin create launch
launch start open run
commence start begin
conduct run perform
perform run execute do
establish create set_up connect
construct build create
formulate write create
transmit send deliver
dispatch send
convey send tell
relay forward send
broadcast send announce publish
announce post notify publish send
circulate send share
respond reply answer
acknowledge confirm approve mark
confirm verify approve check
validate check verify
grant give allow share
revoke remove withdraw cancel
restrict limit block
withhold hide block
conceal hide
hide archive remove
expose publish show
transfer move send
relocate move
duplicate copy clone
clone copy duplicate
substitute replace
convert transform change
transform convert
extract get parse
filter search select
locate find search
discover find search explore
monitor watch track observe
observe watch monitor
supervise monitor
evaluate assess check run analysis
assess evaluate review check
estimate calculate predict
compute calculate
aggregate sum group combine
categorize label tag classify
classify label tag
prioritize order rank
designate assign set
allocate assign
appoint assign
delegate assign
transition move change update
advance move promote
promote deploy advance
release publish deploy
unpublish hide withdraw take_down
deploy release publish
provision create set_up
decommission delete remove
schedule plan book
postpone reschedule delay update
reserve book
document record write describe
annotate comment note
highlight mark format
visual plot chart draw graph
depict draw show chart
illustrate draw chart
render draw generate
populate fill insert
fill enter type
submit send post
upload send attach add
attach add upload
embed insert add
import load upload
export download save
archive close store hide
restore recover undelete reopen
recover restore
synchronise update refresh pull
refresh update reload
"""
