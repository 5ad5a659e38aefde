"""Words that hint at others, trade by trade: shops, offices, code, clouds, data, media, homes.

As in `hints`: who says the left may mean the right, but not the other way round.
"""

from __future__ import annotations

from typing import Final

HINTS_BY_TRADE: Final = """
reimburse compensate give_back > refund
shopper buyer purchaser > customer
checkout till > payment session order
recurring monthly_fee > subscription
pay_out > payout transfer
dispute complain_about_charge > dispute chargeback
how_much_money earnings turnover takings > balance revenue payment
fee > price cost charge
tariff pricing > price plan
dosh cash > money payment balance
expenses receipts > expense receipt
bookkeeping accountant books > account transaction invoice report
profit_and_loss > report profit
stock_level warehouse > inventory
merchandise goods > product
shopping_cart > cart
ship post_it > shipment
where_is_my_order > order tracking
leads pitch close_the_deal > deal opportunity
follow_up > task reminder engagement email
cold_call > call engagement
helpdesk support_case > ticket conversation
angry unhappy > ticket feedback
knowledge_base faq > article page
mailing mailshot > campaign email
subscribers audience > contact list
unsubscribe opt_out > unsubscribe suppression
bounce bounced > bounce delivery
text_him text_her text_them text_me > sms message
ring_up give_a_ring phone_up > call phone
video_call zoom_call > meeting conference
reschedule move_the_meeting push_back > update event
cancel_the_meeting call_off > delete event cancel
invite > attendee event invitation
who_is_coming > attendee
diary agenda > calendar event
day_ahead my_day schedule_today > event list calendar
deadline due > due_date task
overdue late > due_date task
chores errands > task todo
shopping_list > task list
kanban column lane > list board column status
stand_up sprint > sprint board issue
estimate story_points > estimate point
blocked waiting_on > dependency blocker status
duplicate_bug same_bug > duplicate link
crash_report > crash error issue
regression > bug issue
hotfix > branch fix
code_change patch diff > diff commit pull_request
peer_review look_over > review pull_request
contributor author > commit contributor user
who_changed who_edited > blame history commit log
older_version go_back_in_time > revision history restore checkout
release_notes whats_new > release changelog
ci green red_build > pipeline build status check
failing failed broken_build > failure error log status test
rerun again > retry rerun restart
nightly > schedule workflow
environment_variable env_var > env variable secret
api_token > key token secret
spin_down tear_down > delete destroy stop
boot reboot power_cycle > restart reboot
droplet vm virtual_machine > instance server droplet
serverless > function lambda worker
cloud_storage > bucket object storage
blob > object storage blob
cname nameserver a_record > dns record
website_address hostname > domain dns
ssl https padlock > certificate
firewall open_port > firewall rule security_group
bandwidth > network metric traffic
cpu_usage load > metric monitor cpu
graph_of > dashboard panel chart metric
page_someone wake_someone > incident page alert
outage down not_working > incident status health
root_cause post_mortem > incident analysis
noise silence snooze > mute silence alert
logs log_lines > log entry search
trace slow_request > trace span
exception stack > error issue event
slow_query > explain performance query
select join > query sql
columns fields > schema column describe
back_up > backup snapshot export
restore > restore backup
wipe_clean start_over > truncate reset delete
rename > rename update
unique_key primary_key > index constraint
key_value > get set key
expire ttl > expire key
nearest_neighbour similar_documents > vector search similar
crunch number_crunching > aggregate calculate analysis
average mean median > aggregate statistic average
add_up total_of > sum aggregate total
random dice > random generate
roll > random roll
percent of_a_hundred > percentage calculate
square_root equation algebra > calculate math solve
unit_conversion inches pounds > convert unit
zip tar > archive compress
unzip unpack > extract archive
double_click_file open_file > read file
text_file plain_text > file
contents what_does_it_say > read content
line lines > edit insert text
last_line top_lines first_lines tail head > read head tail
folder_size disk_space how_big > size file info usage
duplicate_file > copy
latest_file newest_file > list modified file
permission_bits chmod > permission
search_inside look_inside containing > search content grep
running_program programs task_manager > process list
kill_program frozen > process kill terminate
terminal command_line shell > command execute
install_program > install package
desktop click_on_screen > click screen mouse
screenshot_of_my_screen > screenshot capture screen
copy_paste > clipboard
sound_off mute > volume mute
web_form fill_out > form fill
tick_box checkbox radio > check click select form
dropdown menu > select option
login_page > navigate fill click
scroll_down further_down > scroll
back_button > back navigate
refresh > reload
window_size mobile_view > resize viewport emulate
cookies > cookie
pdf_of_page print_page > pdf save
html source_code > html content source
wait_for loaded > wait
download_it save_it > download save
link_to share_link > link url share
picture_of photo_of > image screenshot
shared_with give_access > share permission access
read_only > permission viewer
trash_can recycle_bin > trash delete
starred favourites > star favourite
headline title > title
paragraph passage > block text paragraph
bold italic font > format style
bullet_points > list block
table_of > table
footnote header > footer header
spellcheck proofread > text check grammar
merge_cells > merge cell
formula > formula cell
sort_rows > sort range
pivot > pivot table
graph_it plot_it > chart
speaker_notes > slide note
handout > document presentation
reading_list > bookmark list
backlinks linked_notes > link note
daily_note journal diary_entry > note daily append
tagged > tag
flash_card > card deck
subtask > subtask child
assignee in_charge > assignee assign
my_work on_my_plate > assigned issue task list
unassigned > issue filter
who_is_online online > presence user status
mention at_mention > mention message
private_message dm > direct message
pinned pin > pin message
emoji > reaction emoji
voice_message > audio voice
join_channel > join channel
kick_from_server > kick member
topic_of_channel > topic channel
invite_link > invite link
group_members > member list
profile_picture > avatar profile
followers > follower
trending hot > trending popular
tweet post_about > post tweet
timeline > feed timeline
video_comments > comment video
channel_stats > channel statistic
what_was_said captions > transcript
watch_later > playlist
songs_like similar_songs > recommendation track
currently_playing what_is_playing > playback current track
shuffle repeat > shuffle playback
turn_it_up turn_it_down > volume
headphones speaker > device playback
recipe_for > recipe
restaurant_near > place search
walk_to drive_to > direction
traffic_jam > traffic
bus_stop > transit station
post_code > postal geocode
country_info > country
public_holiday bank_holiday > holiday
sunrise sunset > sun astronomy
air pollution > air_quality
pollen > air_quality
tide wave > marine
next_days coming_days weekend > forecast
right_now outside > current
historical_weather > history weather
share_price ticker > stock quote price
company_results > financial earning
market_cap > market coin
wallet_balance > balance wallet
send_coins > transfer transaction
gas > gas fee transaction
smart_contract > contract
nft > nft token
encyclopedia look_it_up > wikipedia article search
preprint > paper arxiv
cite bibliography > citation reference
abstract > paper summary
gene protein > gene protein search
chemical molecule > compound
court law legal > case law
job_opening vacancy > job search
resume cv > profile candidate
house_price > property
plane_ticket > flight search
rent_a_car > car rental
room_to_let > listing
concert gig > event ticket
cinema > movie
tv_series > show episode
game_score > match score
horoscope > zodiac
name_of_the_day > random
quote_of > quote
translate > translate
detect_language > language detect
sentiment mood > sentiment analysis
keywords_of > keyword extract
summarise > summary
fact_check > search verify
draw_me > image generate diagram
picture_generator > image generate
remove_background > background image
bigger_picture > upscale resize
convert_video > video convert
cut_video > trim video
sound_of > audio
speak_it > speech
clone_voice > voice clone
listen_to > audio play
describe_picture what_is_in_this_picture > image analyze describe
ocr scan_text > text extract ocr
qr > qr_code
barcode > barcode
flow_chart process_picture > flow diagram
mind_map brainstorm > mind_map
family_tree > tree diagram
timeline_of > timeline
gantt > gantt timeline
map_of > map
wireframe mockup > design
component_library > component
ui_element widget > component
icon > icon
too_cold too_warm > thermostat climate temperature
lock_the_door > lock
alarm_system > alarm
scene mood_lighting > scene light
when_i_get_home > automation
battery > battery device
step_count > activity step
sleep_data > sleep
ran_today > activity
two_factor > mfa
reset_password > password reset
ban_user > block user
who_has_access > permission member access list
roles rights > role permission
login_history > log login
single_sign_on > sso connection
feature_switch > feature_flag
ab_test split_test > experiment variation
gradual_rollout > rollout percentage
traffic_source > analytic report
page_views > analytic view
conversion > funnel conversion analytic
search_ranking seo > keyword rank
sitemap > sitemap map url
broken_links > link audit
page_speed > performance lighthouse
accessibility > accessibility audit
contrast > accessibility
webhook callback > webhook
connect_apps > integration workflow
when_then if_this > trigger automation workflow
run_every > schedule cron
queue_up > queue
dead_letter > queue
dataset > dataset
train_model > train model
model_answer ask_ai > completion chat prompt
prompt > prompt
token_usage > usage
note_to_self > note memory
things_you_know > memory
who_is > person entity search
relation_between > relation
brain > memory knowledge
"""
