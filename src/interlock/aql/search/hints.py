"""Words that hint at others: who says the left may mean the right, but not the other way round.

Everyday talk about what a program calls by its proper name. Written from knowledge of the language.
"""

from __future__ import annotations

from typing import Final

HINTS: Final = """
chuck bin ditch nuke zap scrap kill nix > delete remove
tidy > clean delete organise
fix mend repair correct > update edit
bump tweak touch > update
grab pull fish > get fetch download
poke dig nose > search get
peek glance > get view read
jot scribble > write create note
shoot fire drop > send
hook wire > connect configure
whip knock > create
spin > start create
stick pop throw chuck > add put
show tell > get list
see look > get view list search
know > get
need > get
happen happening > list get event activity
who > user person list get member
where > location find locate search
when > time date schedule
how_many > count list statistic
how_much > price cost count balance
how_long > time duration
how_far > distance
how_often > count frequency
what_time > time current
which > list get
why > explanation log error
what_changed > diff history commit log
boss colleague mate guy folk > user member people contact
outage down > incident status alert
slow sluggish > performance latency
broken > error issue
crash crashing > error exception log
bug > issue error
money paid > payment invoice balance
owe > invoice balance payment
umbrella jacket sunny rainy snow wind cold hot > weather forecast
lunch dinner eat > restaurant place
coffee > place restaurant
drive walk bike > direction route distance
nearby near close_by > place search location
photo > image file
song > music track
tune > music
grocery groceries shopping > task list product
homework > task
party > event
dentist doctor > appointment calendar event
busy free > availability calendar
standup > meeting event
teammate > user member
password > secret credential
website > page url browser
logged > log
laptop computer pc machine > system desktop file
spend spending > cost expense
earn earned > revenue payment
profit > revenue
clip > video
paper > document research
spelling typo > text edit
paste > clipboard
headline headlines > news
celsius fahrenheit degrees > temperature weather
kilometer mile > distance
dollar euro > currency payment price
ceo > person company
competitor > company
visitor > traffic analytic user
signup > user register
newsletter > email campaign
password_reset > password user
diff > change
prod > production environment deploy
staging > environment deploy
customer > contact
tracker > issue project
absence away_from_work day_off time_off > out_of_office vacation leave calendar
sick_leave > absence leave
advance progress promote bump > transition move update status
depend depending > conditional condition rule
highlight colour > format conditional style
speed_up faster quick > index performance optimize cache
slow slowly laggy sluggish hang > performance trace profile latency audit
high altitude > elevation height
village town neighbourhood > place location
initiative theme > epic project
tie relate hook > link associate
restrict limit confine > restriction permission access filter
land > merge
complain complaint grumble > issue report ticket comment feedback
tick tick_off cross_off check_off strike > complete done close mark
unfinished half_done half_finished > stash draft work_in_progress
set_aside put_aside put_away park > stash archive hold
slide drag shove > move
bin trash rubbish garbage > delete trash remove
visible public open_to_everyone > publish share permission public
everybody everyone all_users > broadcast all public
shout tell_everyone > broadcast announce post
nearest closest around nearby near_me > nearby around search_nearby place radius
handset smartphone iphone android tablet > mobile phone device
gps > location coordinate
finger > tap swipe touch
keyboard > type key press
scenario > test case
withdraw take_offline take_down pull_down > unpublish delete remove withdraw
live > publish active production running
identifier > id name public_id
known_as called > name title
toggle > flag feature switch
development evolution over_time trend growth > line_chart trend time_series history
spread distribution > histogram boxplot
correlation relationship_between > scatter
hierarchy > organization tree
cause root_cause > fishbone cause analysis diagnose
bundle package > archive zip
warning > console log error alert
crm > contact company deal customer
computer laptop pc mac machine > file system local disk desktop
hard_drive disk drive > file local
paper papers > document file paper
tell_me_about what_is who_is > search get describe summary information
complain > issue
box field blank > field input text form
homepage web_site > page url site
reminders > todo reminder task
get_in_touch reach_out contact > send message email contact
write_to mail_to > send email
hear_back > reply
unread > inbox message email
spam junk > email label filter
out_of_office > vacation absence
free busy > freebusy availability
lunch dinner breakfast coffee_with > event calendar meeting
remind reminder > reminder task event
clock > time
o_clock pm am > time timezone convert
abroad overseas > timezone
flat apartment house_to_rent > listing accommodation property
fly > flight
sunny rain rainy umbrella wind snow storm hurricane > weather forecast alert
degrees warm > temperature weather
jog ride swim workout exercise gym > activity run
heartbeat pulse > heart_rate activity
lamp bulb light_up dim brighten > light brightness
heat heating cool warmer colder > thermostat temperature climate
curtain blind garage > cover door
vacuum robot > device
watch_tv movie_night > movie media play
loud quiet louder quieter > volume
next_song > next skip
sing singer > artist track
lyrics > lyric song text
say_out_loud read_aloud narrate > speech audio voice
dictation spoken > transcribe speech
subtitle caption > transcript caption
drawing painting artwork > image generate
draw paint > image generate diagram draw
sketch > diagram drawing
logo > image asset
wallpaper > image
background > image remove_background
blurry sharpen enlarge > upscale image
cut trim > crop clip
colour_scheme > colour design
spacing margin padding > design layout style figma
designer > design figma
screen_size > resize viewport
window > tab page resize
bookmark > favourite save
popup > dialog alert
log_in sign_in > login authenticate form
cart basket > cart order product
shop webshop > store product order
sell sold > order sale product
sold_out in_stock > inventory stock product
client > customer contact company
lead prospect > contact deal lead
boss chef > manager
owe unpaid overdue outstanding > invoice payment due
bill > invoice
money_back > refund
bought purchase > order transaction payment
cash_flow > balance transaction
savings > account balance
salary wage paycheck > payroll payment employee
stock_market share_price > stock quote ticker
bitcoin ethereum > crypto price coin
euros dollars pounds yen > currency exchange_rate convert
tax > tax invoice
subscription plan membership > subscription plan
cheaper discount > coupon discount price
gift voucher > coupon gift_card
parcel package_arrive delivery > shipment order tracking
password login > credential user authenticate
locked_out > user password reset unlock
hacker attack breach leak leaked > security vulnerability threat alert
hole weakness > vulnerability
who_did_what audit_trail > audit log activity event
permission access > permission role access
staff colleagues coworkers employees > user member employee people
sign_up new_account > user create register
kick kick_out ban > remove member user
web_server website_down > service server deployment
cluster > kubernetes node pod
container > docker pod
roll_out ship_it go_live > deploy release publish
undo take_back > revert rollback undo
workload app > deployment service pod
chart > helm chart
box > server instance vm container
traffic > request network analytic
hits visits visitors > view analytic traffic
lag delay > latency
memory_leak > heap snapshot memory
dump > export read dump snapshot
records rows entries > document record row insert
lookup lookups > query index search get
structure layout shape > schema structure
field column > field column property
table tables > table schema list
spreadsheet sheet > spreadsheet sheet
numbers figures > value row cell data
contract agreement letter essay > document
deck slides > presentation slide
questionnaire survey quiz > form
answers answered responses > response answer form
guest guests > attendee contact event
phone_number > contact phone
address_book > contact
room > channel space
team_chat group_chat > channel message post
thumbs_up heart smiley > reaction emoji
thread conversation > thread reply
wiki > page confluence document
remark note_on > comment
say_yes green_light thumbs_up_to > approve
say_no > reject decline
collide clash conflict > conflict merge
staging_area > stage add
working_copy local_changes > status diff checkout
line_of_development > branch
proposed_change proposal > pull_request merge_request
codebase > code repository
usages used_in > reference search code
open_source project_on > repository
own_copy > fork clone copy
framework library > documentation library package
manual how_to > documentation guide
publications scientific scholarly > paper research article
thorough in_depth deep_dive > research
every_url all_pages all_links sitemap > map crawl url link
traverse walk_through whole_site > crawl
automatically by_itself > automation rule filter trigger workflow schedule
every_day every_week daily weekly regularly > schedule cron recurring
later > schedule reminder
connected linked > relation link
company > entity company organisation
synonym meaning > definition dictionary
spell grammar > text correct check
foreign_language german french spanish english chinese japanese > translate language
short_version gist nutshell > summary
joke fun bored > joke random
calorie calories diet > nutrition food
cook dinner_idea ingredients > recipe
pill medicine tablet side_effect > drug medication
patient > clinical patient medical
trial > clinical_trial study
planet space star rocket > nasa astronomy
earthquake > earthquake event
score_of match_result > game match score
train bus tram subway > transit train station direction
hotel room_for_the_night stay_in > accommodation hotel listing
sightseeing museum > place attraction
on_foot walking by_car driving > direction route distance
petrol charging_station charger > place poi search
map > map place static
postal street_address zip_code > address geocode
opening_hours reviews_of > place detail
line_of_code > blame code
iteration > sprint
at_the_end at_the_bottom > append
unused stale obsolete > archive delete
hand_over pass_on > assign transfer
share_of proportion percentage > pie_chart
remember recall > memory
guard > protect
intermittent unreliable > flaky unstable
time_spent hours_worked > worklog time_entry
rumour gossip > news search
job_title > profile
persist > store save
textual > text
earlier previous > history version
private hidden > permission restriction unpublish
happen happened > event activity log history
step_by_step think_through > reason sequential think
"""
